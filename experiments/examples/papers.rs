//! Prints one paper, or the audit.
use ringlab_experiments::papers;
fn main() -> anyhow::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "all".into());
    if name == "audit" {
        let (cluster, model, seq) = papers::audit::DEFAULT;
        let audit = papers::audit::audit(cluster, model, seq)?;
        std::fs::write("/tmp/audit.html", audit.html())?;
        print!("{}", audit.markdown());
        return Ok(());
    }
    let report = papers::run(&name)?;
    print!("{}", papers::render(&report.papers));
    Ok(())
}

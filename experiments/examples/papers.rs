//! Prints one paper.
fn main() -> anyhow::Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "all".into());
    let report = ringlab_experiments::papers::run(&name)?;
    print!("{}", ringlab_experiments::papers::render(&report.papers));
    Ok(())
}

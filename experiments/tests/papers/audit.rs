//! The audit of the guides.

use ringlab_experiments::papers::audit::{DEFAULT, Finding, audit};
use ringlab_experiments::papers::compare::compare;
use ringlab_experiments::presets;

#[test]
fn the_page_has_every_claim_with_its_arithmetic() {
    let (cluster, model, seq) = DEFAULT;
    let audit = audit(cluster, model, seq).unwrap();
    let (markdown, html) = (audit.markdown(), audit.html());
    assert!(audit.claims.len() >= 15);
    for claim in &audit.claims {
        assert!(claim.arithmetic.len() > 40, "{}", claim.subject);
        assert!(markdown.contains(&claim.arithmetic), "{}", claim.subject);
        assert!(html.contains(&claim.subject), "{}", claim.subject);
    }
    assert!(audit.claims.iter().any(|c| c.finding == Finding::Holds));
    // 2 - 1/8, 2 - 1/64, and whose figures 4.45x and 1.67x are.
    for text in ["1.875x", "1.984", "Ring Self-Attention (table 3)", "authors' own unbalanced ring"] {
        assert!(markdown.contains(text), "{text}");
    }
    assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
    assert_eq!(html.matches("<table>").count(), html.matches("</table>").count());
    assert!(!html.contains("http"), "no outside references");
}

#[test]
fn systems_are_compared_by_computation() {
    let (cluster, model) = (presets::cluster("dgx-a100-80gb").unwrap(), presets::model("llama-33h").unwrap());
    let found = compare(&cluster, &model, 128 * 1024).unwrap();
    let system = |name: &str| found.systems.iter().find(|s| s.name == name).unwrap();
    // 33 heads on 8 ranks: refused for both that share heads, no matter for rings.
    assert!(system("DeepSpeed-Ulysses").refused.as_ref().unwrap().contains("33 heads"));
    assert!(system("Megatron-LM SP").iteration_s.is_none());
    let ring = system("Ring Attention");
    assert_eq!(ring.speedup_over_ring, Some(1.0));
    assert!((ring.balance - 8.0 / 15.0).abs() < 1e-3);
    assert!((system("DistFlashAttn").balance - 8.0 / 9.0).abs() < 1e-3);
    let gain = system("zigzag ring").speedup_over_ring.unwrap();
    assert!(gain > 1.0 && gain < 2.0 - 1.0 / 8.0, "{gain}");
    assert!(system("DistFlashAttn").longest_context.unwrap().is_power_of_two());
    assert!(found.markdown().contains("| Ring Attention |"));
}

//! The explorer's modules as one script.

/// Modules in the order of their dependence.
const MODULES: [&str; 5] = [
    include_str!("../../web/format.js"),
    include_str!("../../web/canvas.js"),
    include_str!("../../web/timeline.js"),
    include_str!("../../web/table.js"),
    include_str!("../../web/report.js"),
];

/// The styles that reports share with the explorer.
pub fn style() -> &'static str {
    include_str!("../../web/base.css")
}

/// All modules in one scope: imports, one line each, are left out, and exports are plain declarations.
pub fn script() -> String {
    let mut script = String::new();
    for line in MODULES.iter().flat_map(|m| m.lines()).filter(|l| !l.starts_with("import ")) {
        script += line.strip_prefix("export ").unwrap_or(line);
        script.push('\n');
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_can_be_joined() {
        let mut declared = std::collections::BTreeSet::new();
        for line in script().lines() {
            assert!(!line.starts_with("import") && !line.starts_with("export"), "{line}");
            assert!(!line.contains("</script"), "{line}");
            let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            if let ["const" | "let" | "function" | "class", name, ..] = words[..] {
                assert!(declared.insert(name.to_owned()), "{name} is declared in two modules");
            }
        }
        for module in MODULES {
            let imports = module.lines().filter(|l| l.trim_start().starts_with("import "));
            assert!(imports.clone().all(|l| l.starts_with("import {") && l.ends_with(';')));
        }
    }
}

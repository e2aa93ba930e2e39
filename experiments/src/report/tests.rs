use super::*;

fn table() -> Table {
    let column = |name: &str, numeric| Column { name: name.into(), help: "what it <is>".into(), numeric };
    Table {
        columns: vec![column("schedule", false), column("time", true)],
        rows: vec![
            vec![Cell::text("ring & co"), Cell::number(1.5e-3, "1.5 ms")],
            vec![Cell::text("<script>alert(1)</script>"), Cell::number(None, "-")],
        ],
    }
}

#[test]
fn a_page_is_one_file_that_asks_for_nothing() {
    let sections = [
        Section::new("Figures", "Per <layer>.", Body::Table(table())),
        Section::new("Command", "", Body::Code("ringlab simulate --mask 'a'".into())).folded(),
        Section::new("Words", "", Body::Text(vec!["a < b".into()])),
    ];
    let page = page("A \"title\"", "sub", &sections);
    for asks in ["http:", "https:", "src=", "href=", "url(", "@import", "fetch(", "import("] {
        assert!(!page.contains(asks), "{asks}");
    }
    assert!(page.contains("default-src 'none'"));
    assert!(page.contains("<h1>A &quot;title&quot;</h1>"));
    assert!(page.contains("<td>&lt;script&gt;alert(1)&lt;/script&gt;</td>"));
    assert!(page.contains("<td class=\"number\" data-value=\"1.5e-3\">1.5 ms</td>"));
    assert!(page.contains("<td class=\"number\" data-value=\"\">-</td>"));
    assert!(page.contains("<details><summary><h2>Command</h2></summary>"));
    assert!(page.contains("--mask &#39;a&#39;"));
}

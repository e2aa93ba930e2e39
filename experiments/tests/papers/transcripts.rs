//! What the commands print, word for word.

#[test]
fn papers_and_iterations_print_what_is_recorded() {
    trycmd::TestCases::new().case("tests/papers/cmd/*.md");
}

//! The questions in `examples/`: their commands print what the pages show.
//!
//! `TRYCMD=overwrite cargo test --test examples` writes the outputs anew; the answers below them are written by hand.

#[test]
fn the_pages_show_what_the_commands_print() {
    trycmd::TestCases::new().case("../examples/*.md");
}

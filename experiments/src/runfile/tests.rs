use super::*;
use crate::predict::DEFAULT_SEQ;
use crate::setup::Setup;

fn entry(key: &str, value: Value) -> Entry {
    Entry { key: key.into(), value }
}

fn text(key: &str, value: &str) -> Entry {
    entry(key, Value::Text(value.into()))
}

fn read(toml: &str) -> Result<Vec<Entry>> {
    Ok(read::entries("run.toml", toml)?.into_iter().map(|(entry, _)| entry).collect())
}

fn error_of(toml: &str) -> String {
    let result = read(toml).and_then(|entries| run_args(&entries).map(|_| ()));
    format!("{:#}", result.unwrap_err())
}

#[test]
fn what_is_written_reads_back_the_same() {
    let entries = vec![
        text("cluster", "hgx-h200"),
        text("seq", "1Mi"),
        text("cp", "16"),
        text("mask", "window:4Ki+docs:30000,90000"),
        text("link_bandwidth", "225 GB/s"),
        entry("schedule", Value::List(vec!["ring".into(), "striped:64".into()])),
        entry("pad", Value::Flag(true)),
        entry("needed_only", Value::Flag(false)),
    ];
    assert_eq!(read(&to_toml(&entries)).unwrap(), entries);
}

#[test]
fn a_file_in_the_file_keeps_its_meaning_and_its_line_numbers() {
    let model = presets::model_text("llama-3-8b").unwrap();
    let wrong = model.replace("layers = 32", "layers = \"many\"");
    let line = wrong.lines().position(|l| l.starts_with("layers")).unwrap();
    let toml = to_toml(&[text("seq", "1Ki"), text("model", &wrong)]);
    let expected = toml.lines().position(|l| l.starts_with("layers")).unwrap() + 1;
    assert_eq!(expected, line + 4, "a comment, seq and the opening come before");
    let args = run_args(&read(&toml).unwrap()).unwrap().setup;
    let error = format!("{:#}", Setup::new(&args, DEFAULT_SEQ).err().unwrap());
    assert!(error.contains(&format!("--> --model:{expected}:10")), "{error}");

    for awkward in ["{\n \"a\": \"'''\"\n}\n", "it's\n'", "bell \u{7}\n"] {
        let back = read(&to_toml(&[text("model", awkward)])).unwrap();
        let Value::Text(back) = &back[0].value else { panic!("{back:?}") };
        assert_eq!(back.trim(), awkward.trim());
    }
}

#[test]
fn mistakes_have_line_and_column_and_a_hint() {
    let cases = [
        ("cp = 8\nkv-head = 4\n", "run.toml:2:1", "did you mean `kv_heads`?"),
        ("cp = 0\n", "run.toml:1:6", "expected a whole number from 1 to 65536"),
        ("cp = 8\nseq = 1.5\n", "run.toml:2:7", "invalid value"),
        ("pad = \"maybe\"\n", "run.toml:1:7", "true, false"),
        ("\nschedule = [\"ring\", \"zagzig\"]\n", "run.toml:2:12", "there is no schedule \"zagzig\""),
        ("mask = \"diagonal\"\n", "run.toml:1:8", "there is no mask \"diagonal\""),
        ("run = \"other.toml\"\n", "run.toml:1:1", "unknown key `run`"),
        ("cp = 8\ncp = 9\n", "run.toml:2:1", "duplicate key"),
        ("[cluster]\nname = 1\n", "run.toml:1:1", "expected text"),
        ("seq = 128Ki\n", "run.toml:1:7", ""),
    ];
    for (toml, place, what) in cases {
        let error = match read(toml) {
            Err(error) => format!("{error:#}"),
            Ok(entries) => {
                let span = read::entries("run.toml", toml).unwrap()[entries.len() - 1].1.clone();
                let argument = entries[entries.len() - 1].argument(&options());
                format!("{:#}", read::located("run.toml", toml, span, argument).unwrap_err())
            }
        };
        assert!(error.contains(place) && error.contains(what), "{toml}: {error}");
    }
    assert!(error_of("cp = 0").contains("from 1 to 65536"));
}

#[test]
fn a_command_line_leaves_out_defaults_and_quotes_for_the_shell() {
    let entries = [
        text("cluster", "dgx-h100"),
        text("cp", "16"),
        text("link_bandwidth", "225 GB/s"),
        entry("schedule", Value::List(vec!["ring".into(), "zigzag".into()])),
        entry("pad", Value::Flag(true)),
        entry("needed_only", Value::Flag(false)),
    ];
    let expected = "ringlab simulate --cp 16 --link-bandwidth '225 GB/s' --schedule ring,zigzag --pad";
    assert_eq!(command_line("simulate", &entries), expected);
    assert_eq!(quoted("it's"), "'it'\\''s'");
}

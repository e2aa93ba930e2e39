//! A parser of Prometheus' text format 0.0.4, as its documentation defines it: refuses whatever it does not allow.

use std::collections::BTreeMap;

/// One line with a value.
#[derive(Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    /// Sorted by name.
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

/// Every sample, or the first line that is wrong.
pub fn parse(text: &str) -> Result<Vec<Sample>, String> {
    if !text.ends_with('\n') {
        return Err("the last line must end with a line feed".into());
    }
    let (mut types, mut samples): (BTreeMap<String, String>, Vec<Sample>) = (BTreeMap::new(), Vec::new());
    let mut helped = Vec::new();
    for line in text.lines() {
        let wrong = |why: &str| format!("{why}: {line}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or_else(|| wrong("no help"))?;
            if !is_metric_name(name) || help.is_empty() || helped.contains(&name) {
                return Err(wrong("bad or second HELP"));
            }
            helped.push(name);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or_else(|| wrong("no type"))?;
            let known = ["counter", "gauge", "histogram", "summary", "untyped"].contains(&kind);
            if !known || samples.iter().any(|s| s.name == name) {
                return Err(wrong("bad type, or after its samples"));
            }
            if types.insert(name.into(), kind.into()).is_some() {
                return Err(wrong("a second TYPE"));
            }
        } else if !line.starts_with('#') && !line.is_empty() {
            let sample = sample(line).ok_or_else(|| wrong("no sample"))?;
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|s| sample.name.strip_suffix(s));
            let histogram = family.and_then(|f| types.get(f)).is_some_and(|t| t == "histogram");
            if !histogram && !types.contains_key(&sample.name) {
                return Err(wrong("a sample without a TYPE"));
            }
            if samples.iter().any(|s| s.name == sample.name && s.labels == sample.labels) {
                return Err(wrong("a sample twice"));
            }
            samples.push(sample);
        }
    }
    Ok(samples)
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    if !is_metric_name(name) {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let mut fields = rest.strip_prefix(' ')?.split(' ');
    let value = match fields.next()? {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        number => number.parse().ok().filter(|n: &f64| n.is_finite())?,
    };
    if let Some(timestamp) = fields.next() {
        timestamp.parse::<i64>().ok()?;
    }
    fields.next().is_none().then(|| Sample { name: name.into(), labels, value })
}

/// What is between the braces, and what comes after them.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            labels.sort();
            return Some((labels, after));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        if !is_label_name(name) {
            return None;
        }
        let (mut value, mut chars) = (String::new(), quoted.char_indices());
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    _ => return None,
                }),
                (_, c) => value.push(c),
            }
        };
        labels.push((name.into(), value));
        rest = &quoted[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

fn is_metric_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == ':')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

fn is_label_name(name: &str) -> bool {
    is_metric_name(name) && !name.contains(':')
}

#[test]
fn the_parser_refuses_what_the_format_does_not_allow() {
    let family = "# HELP a b\n# TYPE a gauge\n";
    for good in ["a 1\n", "a{x=\"1\"} 2e-3\n", "a{x=\"q\\\"\\\\\\n\",y=\"\"} +Inf\n", "a 1 1700000000000\n"] {
        assert!(parse(&format!("{family}{good}")).is_ok(), "{good}");
    }
    for bad in [
        "a 1",
        "a one\n",
        "a{x=1} 1\n",
        "a{x=\"\\t\"} 1\n",
        "a{x:=\"1\"} 1\n",
        "b 1\n",
        "a 1\na 2\n",
        "1a 1\n",
        "a inf\n",
        "a 1 2 3\n",
    ] {
        assert!(parse(&format!("{family}{bad}")).is_err(), "{bad}");
    }
}

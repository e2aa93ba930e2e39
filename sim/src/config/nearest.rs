//! Suggestions for mistyped names.

/// The candidate nearest to `name`, when few enough edits apart to be what was meant.
///
/// Distance is optimal string alignment on lower-case letters with `-` and `_` taken as one; ties go to the
/// earlier candidate.
pub fn nearest<'c>(name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let name = fold(name);
    let allowed = (name.len() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|candidate| (distance(&name, &fold(candidate)), candidate))
        .filter(|&(edits, _)| edits <= allowed)
        .min_by_key(|&(edits, _)| edits)
        .map(|(_, candidate)| candidate)
}

/// Names are compared up to this many characters; what is longer was not meant as a name.
const LONGEST: usize = 64;

fn fold(name: &str) -> Vec<char> {
    name.chars().take(LONGEST).map(|c| if c == '_' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        rows[i][0] = i;
        for j in 1..=b.len() {
            let substituted = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut edits = substituted.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                edits = edits.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = edits;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_typing_errors_and_nothing_far() {
        let keys = ["bandwidth", "latency", "source", "sms"];
        let cases = [
            ("bandwith", Some("bandwidth")),
            ("Bandwidth", Some("bandwidth")),
            ("latnecy", Some("latency")),
            ("sm", Some("sms")),
            ("frequency", None),
            ("", None),
        ];
        for (typed, meant) in cases {
            assert_eq!(nearest(typed, keys), meant, "{typed}");
        }
    }

    #[test]
    fn distances_by_hand() {
        let distance = |a: &str, b: &str| distance(&fold(a), &fold(b));
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("ca", "ac"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("head-dim", "head_dim"), 0);
    }
}

//! What serde says of a value of the wrong kind, in the words of configurations.

/// The message of an error of serde, kinds of values by the names that users have for them: not `invalid type: string "x",
/// expected f64` but `found the text "x", expected a number`.
pub fn in_words(message: &str) -> String {
    let of_values = ["invalid type: ", "invalid value: "].iter().find_map(|kind| {
        let (before, rest) = message.split_once(kind)?;
        Some((before, rest.rsplit_once(", expected ")?))
    });
    match of_values {
        Some((before, (found, expected))) => {
            format!("{before}found {}, expected {}", self::found(found), self::expected(expected))
        }
        None => message.replacen("unknown variant `", "unknown name `", 1),
    }
}

/// A value that was found, as [`super::Literal`] shows it.
fn found(value: &str) -> String {
    let plain =
        ["integer `", "floating point `", "boolean `"].iter().find_map(|kind| value.strip_prefix(kind));
    match (plain, value) {
        (Some(plain), _) => plain.trim_end_matches('`').to_owned(),
        (None, "sequence") => "a list".to_owned(),
        (None, "map") => "an object".to_owned(),
        (None, "unit value") => "null".to_owned(),
        (None, _) => match value.strip_prefix("string ") {
            Some(text) => format!("the text {text}"),
            None => value.to_owned(),
        },
    }
}

/// What was expected; a range where a type of the program is one.
fn expected(kind: &str) -> String {
    let most = match kind {
        "u8" => Some(u64::from(u8::MAX)),
        "u16" => Some(u64::from(u16::MAX)),
        "u32" => Some(u64::from(u32::MAX)),
        "u64" | "usize" => Some(u64::MAX),
        _ => None,
    };
    match (most, kind) {
        (Some(most), _) => format!("a whole number from 0 to {most}"),
        (None, "i8" | "i16" | "i32" | "i64" | "isize") => "a whole number".to_owned(),
        (None, "f32" | "f64") => "a number".to_owned(),
        (None, "a string") => "text in quotes".to_owned(),
        (None, "a boolean") => "true or false".to_owned(),
        (None, "a sequence") => "a list".to_owned(),
        (None, "a map") => "an object".to_owned(),
        (None, "variant identifier" | "string or map") => "a name in quotes".to_owned(),
        (None, _) if kind.starts_with("enum ") => "a name in quotes".to_owned(),
        (None, _) => kind.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde::de::DeserializeOwned;

    use super::*;

    #[derive(Deserialize, Debug)]
    #[serde(rename_all = "kebab-case")]
    enum Transport {
        CopyEngine,
        Nccl,
    }

    #[track_caller]
    fn assert_said<T: DeserializeOwned + std::fmt::Debug>(json: &str, said: &str) {
        let error = serde_json::from_str::<T>(json).unwrap_err().to_string();
        let (message, _place) = error.rsplit_once(" at line ").unwrap();
        assert_eq!(in_words(message), said);
    }

    #[test]
    fn kinds_have_the_names_that_users_have_for_them() {
        assert_said::<f64>("\"1\"", "found the text \"1\", expected a number");
        assert_said::<f64>("\"a, expected b\"", "found the text \"a, expected b\", expected a number");
        assert_said::<f64>("[1]", "found a list, expected a number");
        assert_said::<u32>("-1", "found -1, expected a whole number from 0 to 4294967295");
        assert_said::<u32>("4294967296", "found 4294967296, expected a whole number from 0 to 4294967295");
        assert_said::<u64>("1.5", "found 1.5, expected a whole number from 0 to 18446744073709551615");
        assert_said::<i64>("true", "found true, expected a whole number");
        assert_said::<String>("null", "found null, expected text in quotes");
        assert_said::<bool>("{}", "found an object, expected true or false");
        assert_said::<Vec<u8>>("1", "found 1, expected a list");
        assert_said::<BTreeMap<String, u8>>("[]", "found a list, expected an object");
        assert_said::<Transport>("\"pigeon\"", "unknown name `pigeon`, expected `copy-engine` or `nccl`");
    }

    #[test]
    fn what_is_about_no_value_stays() {
        assert_eq!(in_words("missing field `load`"), "missing field `load`");
        assert_eq!(
            in_words("body: run: invalid type: null, expected a map"),
            "body: run: found null, expected an object"
        );
    }
}

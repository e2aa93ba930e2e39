//! Both forms of a model: what they read, and the exact place of what they refuse.

mod layers;
mod names;

use proptest::prelude::*;

use super::*;

const LLAMA: &str = r#"{
  "architectures": ["LlamaForCausalLM"],
  "attention_bias": false,
  "eos_token_id": [128001, 128008],
  "hidden_act": "silu",
  "hidden_size": 4096,
  "intermediate_size": 14336,
  "max_position_embeddings": 131072,
  "model_type": "llama",
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 8,
  "pretraining_tp": 1,
  "rope_scaling": {"factor": 8.0, "rope_type": "llama3", "note": "one \" } and \\"},
  "tie_word_embeddings": false,
  "vocab_size": 128256
}
"#;

const TOML: &str = r#"name = "tiny"
source = "a test"
layers = 2
hidden = 64
heads = 8
kv_heads = 2
intermediate = 256
vocab = 1000
experts = { count = 8, active = 2 }
max_positions = "4Ki"
"#;

fn json(text: &str) -> Result<Model, ConfigError> {
    Model::parse("config.json", text)
}

/// [`LLAMA`] with `from` replaced.
fn llama(from: &str, to: &str) -> Result<Model, ConfigError> {
    assert!(LLAMA.contains(from), "{from}");
    json(&LLAMA.replace(from, to))
}

fn assert_fails(result: Result<Model, ConfigError>, position: (usize, usize), message: &str) {
    let error = result.expect_err(message);
    assert_eq!((error.position(), error.message()), (Some(position), message), "{error}");
}

#[test]
fn llama_config_reads_unchanged() {
    let model = json(LLAMA).expect("valid");
    assert_eq!(
        (model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim),
        (32, 4096, 32, 8, 128)
    );
    assert_eq!((model.intermediate, model.vocab), (14336, 128_256));
    assert_eq!((model.gated_mlp, model.tied_embeddings, model.experts), (true, false, None));
    assert_eq!(model.max_positions, Some(Tokens(131_072)));
    assert_eq!(model.kv_bytes_per_token(Bytes(2)), Bytes(4096));
}

#[test]
fn other_architectures_read_by_their_names() {
    let neox = json(
        r#"{"model_type": "gpt_neox", "hidden_size": 6144, "num_attention_heads": 64, "num_hidden_layers": 44,
            "intermediate_size": 24576, "vocab_size": 50432, "tie_word_embeddings": false}"#,
    )
    .expect("GPT-NeoX");
    assert_eq!((neox.head_dim, neox.kv_heads, neox.gated_mlp), (96, 64, false));

    let gpt2 = json(
        r#"{"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_inner": null,
            "n_positions": 1024, "vocab_size": 50257}"#,
    )
    .expect("GPT-2");
    assert_eq!((gpt2.layers, gpt2.intermediate, gpt2.tied_embeddings), (12, 3072, true));

    let qwen3 = json(
        r#"{"model_type": "qwen3", "hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8,
            "head_dim": 128, "num_hidden_layers": 64, "intermediate_size": 25600, "vocab_size": 151936,
            "use_sliding_window": false, "sliding_window": 4096}"#,
    )
    .expect("Qwen3");
    assert_eq!((qwen3.head_dim, qwen3.sliding_window), (128, None));

    let mixtral = json(
        r#"{"model_type": "mixtral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
            "num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 32000, "sliding_window": null,
            "num_local_experts": 8, "num_experts_per_tok": 2}"#,
    )
    .expect("Mixtral");
    assert_eq!(mixtral.experts, Some(Moe { count: 8, active: 2 }));

    let nested = json(&format!("{{\"model_type\": \"llava\", \"text_config\": {LLAMA}}}")).expect("nested");
    assert_eq!(nested, Model { name: nested.name.clone(), ..json(LLAMA).expect("valid") });
}

#[test]
fn key_heads_follow_each_convention() {
    let heads = |line: &str| llama("\"num_key_value_heads\": 8,", line).map(|model| model.kv_heads);
    assert_eq!(heads(""), Ok(32));
    assert_eq!(heads("\"num_key_value_heads\": null,"), Ok(32));
    assert_eq!(heads("\"multi_query\": true,"), Ok(1));
    assert_eq!(heads("\"multi_query\": true, \"num_kv_heads\": 32,"), Ok(1));
    assert_eq!(
        heads("\"multi_query\": true, \"new_decoder_architecture\": true, \"num_kv_heads\": 4,"),
        Ok(4)
    );
    assert_eq!(heads("\"multi_query\": false,"), Ok(32));
    assert_fails(
        llama("\"pretraining_tp\": 1", "\"multi_query\": true"),
        (12, 26),
        "`num_key_value_heads` is 8, but `multi_query` is true",
    );
}

/// Attention needs neither; what does refuses 0.
#[test]
fn config_json_may_leave_out_what_attention_does_not_need() {
    let without = |from, to| llama(from, to).expect("valid");
    let model = without("\"intermediate_size\": 14336,", "");
    assert_eq!((model.heads, model.kv_heads, model.intermediate, model.vocab), (32, 8, 0, 128_256));
    assert_eq!(without("\"vocab_size\": 128256", "\"other\": 1").vocab, 0);
}

/// What stands in [`LLAMA`], what takes its place, and what is said of it at which line and column.
const REFUSED: &[(&str, &str, (usize, usize), &str)] = &[
    ("\"hidden_size\": 4096,\n", "", (1, 1), "missing `hidden_size`"),
    (
        "\"hidden_size\": 4096",
        "\"hidden_size\": 4100",
        (6, 18),
        "`hidden_size` is 4100, not a multiple of `num_attention_heads`, 32",
    ),
    (
        "_value_heads\": 8",
        "_value_heads\": 5",
        (12, 26),
        "`num_key_value_heads` is 5, which does not divide `num_attention_heads`, 32",
    ),
    ("\"pretraining_tp\": 1", "\"n_head\": 16", (13, 13), "`n_head` is 16, but `num_attention_heads` is 32"),
    (
        "\"pretraining_tp\": 1",
        "\"kv_lora_rank\": 512",
        (13, 19),
        "`kv_lora_rank` belongs to attention without plain key and value heads",
    ),
    (
        "\"pretraining_tp\": 1",
        "\"is_encoder_decoder\": true",
        (13, 25),
        "an encoder-decoder model has no single causal attention",
    ),
    ("\"pretraining_tp\"", "\"hidden_size\"", (13, 3), "`hidden_size` is given twice"),
    (
        "embeddings\": false",
        "embeddings\": \"no\"",
        (15, 26),
        "`tie_word_embeddings` is the text \"no\", expected true or false",
    ),
    ("32,\n  \"num_key", "32\n  \"num_key", (12, 3), "not valid JSON: expected `,` or `}`"),
];

#[test]
fn config_json_errors_name_field_and_place() {
    for &(from, to, position, message) in REFUSED {
        assert_fails(llama(from, to), position, message);
    }
    assert_fails(json("{\"a\": "), (1, 6), "not valid JSON: EOF while parsing a value");
}

#[test]
fn numbers_of_config_json_are_whole_and_in_their_range() {
    for (written, shown) in [
        ("0", "0"),
        ("-1", "-1"),
        ("32.0", "32.0"),
        ("9223372036854775808", "9223372036854775808"),
        ("18446744073709551616", "18446744073709551616"),
        ("\"32\"", "the text \"32\""),
        ("[32]", "a list"),
    ] {
        let message = format!("`num_hidden_layers` is {shown}, expected a whole number from 1 to 1024");
        assert_fails(llama("_layers\": 32", &format!("_layers\": {written}")), (11, 24), &message);
    }
    assert_eq!(
        llama("_layers\": 32", "_layers\": \"32\"").expect_err("text").hint(),
        Some("write 32 without quotes")
    );
}

#[test]
fn toml_reads_with_its_defaults() {
    let model = Model::parse("tiny.toml", TOML).expect("valid");
    assert_eq!((model.head_dim, model.kv_heads, model.gated_mlp, model.tied_embeddings), (8, 2, true, false));
    assert_eq!((model.experts, model.max_positions), (Some(Moe { count: 8, active: 2 }), Some(Tokens(4096))));
    // By hand: attention 2*64*8*(8+2), eight experts of 3*64*256, embeddings 2*1000*64.
    assert_eq!(model.parameters(), 2 * (10_240 + 8 * 49_152) + 128_000);
    assert_eq!(model.active_parameters(), 2 * (10_240 + 2 * 49_152) + 128_000);
}

#[test]
fn toml_errors_name_key_and_place() {
    let cases = [
        ("layers = 2\n", "", (1, 1), "missing `layers`"),
        ("layers", "layer", (3, 1), "unknown key `layer`"),
        ("layers = 2", "layers = 0", (3, 10), "`layers` is 0, expected a whole number from 1 to 1024"),
        ("layers = 2", "layers = 2.0", (3, 10), "`layers` is 2.0, expected a whole number from 1 to 1024"),
        (
            "layers = 2",
            "layers = 9223372036854775808",
            (3, 10),
            "`layers` is 9223372036854775808, expected a whole number from 1 to 1024",
        ),
        ("hidden = 64", "hidden = 60", (4, 10), "`hidden` is 60, not a multiple of `heads`, 8"),
        ("kv_heads = 2", "kv_heads = 3", (6, 12), "`kv_heads` is 3, which does not divide `heads`, 8"),
        ("active = 2", "active = 9", (9, 33), "`experts.active` is 9, more than `experts.count`, 8"),
        ("active", "actives", (9, 24), "unknown key `experts.actives`"),
        ("{ count = 8, active = 2 }", "8", (9, 11), "`experts` is 8, expected a table"),
        ("\"4Ki\"", "\"4K\"", (10, 17), "`max_positions`: unknown unit `K`, expected a token count"),
        ("\"tiny\"", "\" \"", (1, 8), "`name` is the text \" \", expected text that is not blank"),
    ];
    for (from, to, position, message) in cases {
        assert!(TOML.contains(from), "{from}");
        assert_fails(Model::parse("tiny.toml", &TOML.replacen(from, to, 1)), position, message);
    }
    let error = Model::parse("tiny.toml", &TOML.replace("layers", "layer")).expect_err("unknown");
    assert_eq!(error.hint(), Some("did you mean `layers`?"));
}

#[test]
fn an_error_reads_like_a_compilers() {
    let error = Model::parse("tiny.toml", &TOML.replace("heads = 8", "heads = -8")).expect_err("negative");
    let expected = "\
`heads` is -8, expected a whole number from 1 to 16384
 --> tiny.toml:5:9
  |
5 | heads = -8
  |         ^^";
    assert_eq!(error.to_string(), expected);
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,200}") {
        let _outcome = Model::parse("a", &text).map_err(|error| error.to_string());
    }

    #[test]
    fn arbitrary_json_never_panics(text in "[{}\\[\\]\":,a-z0-9 \\\\\n-]{0,80}") {
        let _outcome = Model::parse("a", &format!("{{{text}")).map_err(|error| error.to_string());
    }

    #[test]
    fn mutated_files_never_panic(
        at in 0_usize..700, cut in 0_usize..40, insert in "[{}\\[\\]\":,a-z0-9 \\\\\n.\u{e9}\u{0}-]{0,6}", toml: bool,
    ) {
        let text = if toml { TOML } else { LLAMA };
        let at = at.min(text.len());
        let mutated = format!("{}{insert}{}", &text[..at], &text[(at + cut).min(text.len())..]);
        if let Err(error) = Model::parse("a", &mutated) {
            let (line, column) = error.position().unwrap_or((1, 1));
            prop_assert!(line <= mutated.split('\n').count() && column > 0);
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

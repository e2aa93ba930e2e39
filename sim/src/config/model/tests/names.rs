//! Names by which other architectures keep their fields, element types, and texts of the wrong kind.

use super::*;
use crate::config::cluster::{Cluster, Dtype};

#[test]
fn key_heads_one_level_down_are_read() {
    let mpt = |attention: &str| {
        json(&format!(
            "{{\"model_type\": \"mpt\", \"d_model\": 6144, \"n_heads\": 48, \"n_layers\": 40, \"vocab_size\": 100352,\n\
              \"max_seq_len\": 32768, \"attn_config\": {{{attention}}}}}"
        ))
    };
    let heads = |attention: &str| mpt(attention).unwrap_or_else(|error| panic!("{error}")).kv_heads;
    assert_eq!(heads("\"kv_n_heads\": 8, \"clip_qkv\": 8"), 8);
    assert_eq!(heads("\"attn_type\": \"multihead_attention\", \"sliding_window_size\": -1"), 48);
    assert_eq!(heads("\"attn_type\": \"multiquery_attention\""), 1);
    assert_eq!(heads("\"attn_type\": \"grouped_query_attention\", \"kv_n_heads\": 6"), 6);
    assert_eq!(mpt("").expect("plain").max_positions, Some(Tokens(32768)));
    let refused = [
        ("\"kv_n_heads\": 7", "`attn_config.kv_n_heads` is 7, which does not divide `n_heads`, 48"),
        ("\"sliding_window_size\": 512", "`attn_config.sliding_window_size` is 512, expected -1"),
        (
            "\"attn_type\": \"grouped_query_attention\"",
            "`attn_config.attn_type` is the text \"grouped_query_attention\", but `kv_n_heads` is missing",
        ),
        (
            "\"attn_type\": \"multihead_attention\", \"kv_n_heads\": 8",
            "`attn_config.attn_type` is the text \"multihead_attention\", but `attn_config.kv_n_heads` is given",
        ),
        ("\"attn_type\": \"flash\"", "`attn_config.attn_type` is the text \"flash\", which is not known"),
    ];
    for (attention, message) in refused {
        assert_eq!(mpt(attention).expect_err(message).message(), message);
    }
}

#[test]
fn dbrx_and_chatglm_read_by_their_names() {
    let dbrx = json(
        r#"{"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352,
            "attn_config": {"kv_n_heads": 8}, "torch_dtype": "bfloat16",
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}}"#,
    )
    .expect("DBRX");
    assert_eq!((dbrx.kv_heads, dbrx.head_dim, dbrx.intermediate), (8, 128, 10752));
    assert_eq!(dbrx.experts, Some(Moe { count: 16, active: 4 }));
    // "132B total parameters of which 36B parameters are active".
    assert_eq!((dbrx.parameters() / 1_000_000_000, dbrx.active_parameters() / 1_000_000_000), (131, 36));

    let glm = json(
        r#"{"model_type": "chatglm", "hidden_size": 4096, "num_attention_heads": 32, "num_layers": 28,
            "ffn_hidden_size": 13696, "padded_vocab_size": 65024, "kv_channels": 128, "seq_length": 32768,
            "multi_query_attention": true, "multi_query_group_num": 2, "torch_dtype": "float16"}"#,
    )
    .expect("ChatGLM3-6B");
    assert_eq!((glm.layers, glm.kv_heads, glm.head_dim, glm.vocab), (28, 2, 128, 65024));
    assert_eq!((glm.stored_dtype, glm.max_positions), (Some(Dtype::Fp16), Some(Tokens(32768))));
}

#[test]
fn gemma_3_reads_with_what_its_class_assumes() {
    // As published: heads of 256 for a width of 3840 over 16 heads, and no vocabulary.
    let gemma = json(
        r#"{"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {"model_type": "gemma3_text",
            "hidden_size": 3840, "intermediate_size": 15360, "num_attention_heads": 16, "num_hidden_layers": 48,
            "num_key_value_heads": 8, "sliding_window": 1024}}"#,
    )
    .expect("Gemma-3-12B");
    assert_eq!((gemma.head_dim, gemma.vocab, gemma.stored_dtype), (256, 262_208, Some(Dtype::Bf16)));
    assert_eq!(gemma.layer_mix, Some(LayerMix { causal: 8, windowed: 40, window: Tokens(1024) }));
    // The model card counts 11.8 billion in the language model.
    assert_eq!((gemma.parameters() + 50_000_000) / 100_000_000, 118);
}

#[test]
fn missing_fields_name_what_was_meant() {
    let hint = |from: &str, to: &str| llama(from, to).expect_err(to).hint().unwrap_or_default().to_owned();
    assert_eq!(
        hint("num_attention_heads", "num_atention_head"),
        "did you mean `num_attention_heads` by `num_atention_head`?"
    );
    assert_eq!(hint("num_hidden_layers", "depth"), "also known as `n_layer`, `n_layers`, `num_layers`");
    let renamed =
        LLAMA.replace("num_attention_heads", "num_heads").replace("num_hidden_layers", "num_layers");
    assert_eq!(json(&renamed), json(LLAMA));
}

#[test]
fn element_types_are_read_or_refused() {
    let dtype = |line: &str| llama("\"pretraining_tp\": 1", line).map(|model| model.stored_dtype);
    for (text, expected) in [
        ("bfloat16", Dtype::Bf16),
        ("torch.float16", Dtype::Fp16),
        ("float32", Dtype::Fp32),
        ("float8_e4m3fn", Dtype::Fp8),
    ] {
        assert_eq!(dtype(&format!("\"torch_dtype\": \"{text}\"")), Ok(Some(expected)), "{text}");
        assert_eq!(dtype(&format!("\"dtype\": \"{text}\"")), Ok(Some(expected)), "{text}");
    }
    assert_eq!(dtype("\"torch_dtype\": null"), Ok(None));
    assert_fails(
        llama("\"pretraining_tp\": 1", "\"torch_dtype\": \"int3\""),
        (13, 18),
        "`torch_dtype` is the text \"int3\", which is no known type",
    );
}

#[test]
fn json_is_known_by_its_opening_or_its_label() {
    assert_eq!(json(&format!("\u{feff}{LLAMA}")), json(LLAMA));
    assert_eq!(Model::parse("tiny.toml", &format!("\u{feff}{TOML}")), Model::parse("tiny.toml", TOML));
    let message = |label: &str, text: &str| {
        let error = Model::parse(label, text).expect_err(text);
        (error.message().to_owned(), error.hint().unwrap_or_default().to_owned())
    };
    for label in ["config.json", "CONFIG.JSON", "model"] {
        assert_eq!(message(label, "[]").0, "the file holds a list, expected an object in braces");
        assert_eq!(message(label, " null\n").0, "the file holds null, expected an object in braces");
        assert_eq!(
            message(label, "// a comment\n{}"),
            ("not valid JSON: expected value".to_owned(), "JSON has no comments; take them out".to_owned())
        );
    }
    assert_eq!(message("config.json", "7").0, "the file holds 7, expected an object in braces");
    assert_eq!(message("config.json", "").0, "the file is empty");
    assert_eq!(message("a.toml", "[experts]\ncount = 8").0, "missing `hidden`");
    assert_eq!(message("a", "[experts]\ncount = 8").0, "missing `hidden`");
    assert_eq!(message("c.json", "{\"a\": 1, # one\n\"b\": 2}").1, "JSON has no comments; take them out");
}

#[test]
fn models_and_clusters_are_told_apart() {
    let error = Cluster::parse("config.json", LLAMA).expect_err("a model");
    assert_eq!(error.message(), "looks like JSON, but a cluster is TOML");
    assert!(error.hint().is_some_and(|hint| hint.ends_with("with --model")), "{error}");

    let error = Cluster::parse("tiny.toml", TOML).expect_err("a model");
    assert_eq!(error.hint(), Some("give this file as the model, with --model"));
    assert!(error.position().is_some_and(|(line, column)| line >= 3 && column == 1), "{error}");

    let cluster = "name = \"pair\"\nsource = \"a test\"\nnodes = 2\ngpus_per_node = 4\n";
    let error = Model::parse("pair.toml", cluster).expect_err("a cluster");
    assert_eq!(error.hint(), Some("give this file as the cluster, with --cluster"));
    assert!(error.message().ends_with("belongs to a cluster, expected a model"), "{error}");
}

//! Models whose layers differ: counts by hand from each architecture's convention, and what is refused.

use super::*;

/// A model of `layers` layers with the lines `more`.
fn config(layers: u64, more: &str) -> Result<Model, ConfigError> {
    json(&format!(
        "{{\"hidden_size\": 4096, \"num_attention_heads\": 32, \"num_hidden_layers\": {layers},\n\
          \"intermediate_size\": 8192, \"vocab_size\": 1000,\n{more}}}"
    ))
}

/// Causal and windowed layers, and the window; `(layers, 0, 0)` and `(0, layers, window)` where all are alike.
fn mix(layers: u64, more: &str) -> (u64, u64, u64) {
    let model = config(layers, more).unwrap_or_else(|error| panic!("{error}"));
    match (model.sliding_window, model.layer_mix) {
        (None, None) => (layers, 0, 0),
        (Some(window), None) => (0, layers, window.0),
        (None, Some(mix)) => (mix.causal, mix.windowed, mix.window.0),
        (Some(_), Some(_)) => panic!("a mix has no common window"),
    }
}

/// A list of `layers` names, every `every`-th of them `full_attention`.
fn layer_types(layers: usize, every: usize, other: &str) -> String {
    let name = |i: usize| if (i + 1).is_multiple_of(every) { "full_attention" } else { other };
    let names: Vec<_> = (0..layers).map(|i| format!("\"{}\"", name(i))).collect();
    format!("\"layer_types\": [{}]", names.join(", "))
}

#[test]
fn windows_follow_each_architectures_convention() {
    let listed = |layers, every| {
        format!("{}, \"sliding_window\": 128", layer_types(layers, every, "sliding_attention"))
    };
    let cases = [
        (32, "\"model_type\": \"llama\"", (32, 0, 0)),
        (32, "\"model_type\": \"mistral\", \"sliding_window\": 4096", (0, 32, 4096)),
        (32, "\"model_type\": \"mistral\", \"sliding_window\": null", (32, 0, 0)),
        // gpt-oss-120b: 36 layers in turns; its first is windowed.
        (36, &listed(36, 2), (18, 18, 128)),
        (35, "\"model_type\": \"gpt_oss\", \"sliding_window\": 128", (17, 18, 128)),
        // Gemma-2-27B: 46 layers in turns. Gemma-3-27B: 62 layers, every sixth attends to all.
        (46, "\"model_type\": \"gemma2\", \"sliding_window\": 4096, \"head_dim\": 128", (23, 23, 4096)),
        (62, "\"model_type\": \"gemma3_text\", \"sliding_window\": 1024", (10, 52, 1024)),
        (48, "\"sliding_window\": 1024, \"sliding_window_pattern\": 4", (12, 36, 1024)),
        (48, "\"sliding_window\": 1024, \"_sliding_window_pattern\": 4", (12, 36, 1024)),
        (5, "\"sliding_window\": 1024, \"sliding_window_pattern\": 6", (0, 5, 1024)),
        (5, "\"sliding_window\": 1024, \"sliding_window_pattern\": 1", (5, 0, 0)),
        // Qwen2: the first `max_window_layers` layers attend to all, and the switch is off unless it is on.
        (32, "\"model_type\": \"qwen2\", \"sliding_window\": 4096", (32, 0, 0)),
        (
            32,
            "\"model_type\": \"qwen2\", \"use_sliding_window\": true, \"sliding_window\": 4096, \"max_window_layers\": 21",
            (21, 11, 4096),
        ),
        (32, "\"model_type\": \"qwen2\", \"use_sliding_window\": true, \"sliding_window\": 4096", (28, 4, 4096)),
        (
            28,
            "\"model_type\": \"qwen2\", \"use_sliding_window\": true, \"sliding_window\": 4096, \"max_window_layers\": 28",
            (28, 0, 0),
        ),
        (
            28,
            "\"use_sliding_window\": false, \"sliding_window\": 4096, \"max_window_layers\": 0",
            (28, 0, 0),
        ),
        // GPT-Neo.
        (
            4,
            "\"model_type\": \"gpt_neo\", \"attention_types\": [[[\"global\", \"local\"], 2]], \"window_size\": 256,
             \"attention_layers\": [\"global\", \"local\", \"global\", \"local\"]",
            (2, 2, 256),
        ),
        (3, &layer_types(3, 1, ""), (3, 0, 0)),
    ];
    for (layers, more, expected) in cases {
        assert_eq!(mix(layers, more), expected, "{more}");
    }
}

#[test]
fn the_note_says_what_the_figures_leave_out() {
    let model = config(48, "\"sliding_window\": 1024, \"sliding_window_pattern\": 4").expect("a mix");
    assert_eq!(
        model.layer_note().as_deref(),
        Some(
            "12 of 48 layers attend to all earlier tokens, 36 to a window of 1024: the figures are for one layer \
             that attends to all; use --mask window:1024 for the others"
        )
    );
    assert_eq!(config(48, "\"sliding_window\": 1024").expect("uniform").layer_note(), None);
}

#[test]
fn toml_counts_windowed_layers() {
    let with = |lines: &str| {
        Model::parse("tiny.toml", &TOML.replace("layers = 2\n", &format!("layers = 2\n{lines}")))
    };
    let model = with("sliding_window = 4096\nwindowed_layers = 1\n").expect("a mix");
    assert_eq!(model.layer_mix, Some(LayerMix { causal: 1, windowed: 1, window: Tokens(4096) }));
    assert_eq!(with("sliding_window = 4096\n").expect("uniform").sliding_window, Some(Tokens(4096)));
    assert_fails(
        with("windowed_layers = 1\n"),
        (4, 19),
        "`windowed_layers` is given, but there is no `sliding_window`",
    );
    assert_fails(
        with("sliding_window = 64\nwindowed_layers = 3\n"),
        (5, 19),
        "`windowed_layers` is 3, expected a whole number from 0 to 2",
    );
    assert_fails(
        with("sliding_window = false\n"),
        (4, 18),
        "`sliding_window` is false, expected a number of tokens",
    );
}

#[test]
fn layers_that_cannot_be_planned_are_refused_by_name() {
    let linear = layer_types(4, 4, "linear_attention");
    let chunked = layer_types(4, 4, "chunked_attention");
    let cases = [
        (linear.as_str(), "`layer_types[0]` is the text \"linear_attention\", which cannot be planned"),
        (&chunked, "`layer_types[0]` is the text \"chunked_attention\", which cannot be planned"),
        (
            "\"full_attention_interval\": 4",
            "`full_attention_interval` belongs to a model with layers that are no attention",
        ),
        (
            "\"attention_chunk_size\": 8192",
            "`attention_chunk_size` is 8192: some layers attend within chunks",
        ),
        ("\"global_head_dim\": 512", "`global_head_dim` gives some layers other heads than the rest"),
        (
            "\"attention_types\": [[[\"local\"], 4]]",
            "`attention_types` belongs to attention that no window describes",
        ),
        ("\"layer_types\": [\"full_attention\"]", "`layer_types` names 1 layers, but there are 4"),
        ("\"layer_types\": [\"full_attention\", 1, 2, 3]", "`layer_types[1]` is 1, expected text in quotes"),
        ("\"model_type\": \"gemma2\"", "missing `sliding_window`, which layers of gemma2 have"),
        (
            "\"sliding_window\": 8, \"sliding_window_pattern\": \"LLLG\"",
            "`sliding_window_pattern` is the text \"LLLG\", expected a whole number from 1 to 1024",
        ),
        (
            "\"sliding_window\": false",
            "`sliding_window` is false, expected a whole number from 1 to 2147483648",
        ),
        ("\"sliding_window\": 0", "`sliding_window` is 0, expected a whole number from 1 to 2147483648"),
    ];
    for (more, message) in cases {
        let error = config(4, more).expect_err(message);
        assert_eq!(error.message(), message);
        assert!(error.position().is_some(), "{error}");
    }
    let no_window = config(4, &layer_types(4, 2, "sliding_attention")).expect_err("no window");
    assert_eq!(no_window.message(), "`layer_types` has 2 layers with a window, but none is set");
    let hint = |more: &str| config(4, more).expect_err(more).hint().unwrap_or_default().to_owned();
    assert!(hint("\"attention_chunk_size\": 8192").contains("--mask docs:8192,8192,..."));
    assert_eq!(hint("\"sliding_window\": \"4096\""), "write 4096 without quotes");
    assert_eq!(hint("\"sliding_window\": false"), "null stands for no window");
}

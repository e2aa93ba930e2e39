//! Names by size, mistyped names, and files that are no configuration.

use std::fs;
use std::path::Path;

use ringlab_experiments::presets;
use ringlab_sim::config::ConfigError;
use ringlab_sim::config::cluster::{Cluster, NetworkTopology};

fn failure(name: &str) -> ConfigError {
    presets::cluster(name).expect_err(name)
}

#[test]
fn sizes_are_read_from_the_name() {
    for nodes in [1, 2, 4, 8, 16, 32, 64, 128] {
        let cluster = presets::cluster(&format!("h100-{nodes}x8-rail")).expect("a size");
        assert_eq!((cluster.nodes, cluster.gpus_per_node), (nodes, 8));
        // The changed cluster still holds everything that a file must hold.
        assert_eq!(Cluster::parse("again", &cluster.to_toml()).expect("valid"), cluster);
    }
    for (name, ratio) in [("h100-4x4-fat-tree", 1.0), ("H100-4x4-fat-tree-2to1", 2.0)] {
        let network = presets::cluster(name).expect(name).network.expect("a network");
        assert_eq!(network.topology, NetworkTopology::FatTree { nodes_per_leaf: 4, oversubscription: ratio });
        assert_eq!(network.nics_per_node, 4);
    }
    let text = presets::cluster_text("h100-2x8-rail").expect("made by size");
    assert_eq!(Cluster::parse("text", &text).expect("valid").nodes, 2);
}

#[test]
fn impossible_sizes_say_what_is_possible() {
    let cases = [
        ("h100-0x8-rail", "`0` is no number of nodes"),
        ("h100-5000x8-rail", "`5000` is no number of nodes"),
        ("h100-2x9-rail", "`9` is no number of GPUs a node"),
        ("h100-+2x8-rail", "`+2` is no number of nodes"),
        ("h100-2x8-ring", "`ring` is no network"),
        ("h100-2x8-fat-tree-0to1", "`fat-tree-0to1` is no network"),
    ];
    for (name, message) in cases {
        let error = failure(name);
        assert_eq!(error.message(), message, "{name}");
        assert!(error.hint().is_some_and(|hint| hint.contains("h100-4096x8-rail")), "{error}");
    }
}

#[test]
fn mistyped_names_get_the_nearest_preset() {
    assert_eq!(failure("dgx-h10").hint(), Some("did you mean dgx-h100?"));
    assert_eq!(failure("dgx_b200").hint(), Some("did you mean dgx-b200?"));
    assert!(failure("frontier").hint().is_some_and(|hint| hint.starts_with("presets: ideal, pcie-8x-a100")));
    let model = presets::model("llama3-8b").expect_err("mistyped");
    assert_eq!(model.hint(), Some("did you mean llama-3-8b?"));
    assert_eq!(
        model.to_string(),
        "llama3-8b: no model preset has this name, and there is no such file\n  = help: did you mean llama-3-8b?"
    );
}

#[test]
fn files_that_are_no_text_say_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        path.to_string_lossy().into_owned()
    };
    let message = |path: String| failure(&path).message().to_owned();
    assert_eq!(message(folder.path().to_string_lossy().into_owned()), "is a folder, expected a file");
    assert_eq!(message(file("empty.toml", b"")), "the file is empty");
    assert_eq!(message(file("blank.toml", b" \n\n")), "the file is empty");
    assert_eq!(message(file("binary", b"name = \"\xff\"")), "is not text: byte 8 is not UTF-8");
    assert_eq!(message(file("zero", b"a\0b")), "is not text: byte 1 is zero");
    assert_eq!(
        message(file("large", &vec![b' '; (4 << 20) + 1])),
        "is larger than 4 MiB, expected a small text file"
    );
    assert!(
        message(folder.path().join("absent.toml").to_string_lossy().into_owned()).starts_with("no cluster")
    );
}

#[test]
fn other_texts_are_read_alike() {
    let absent = presets::read_text(Path::new("/absent/lengths.txt")).expect_err("absent");
    assert_eq!(absent.to_string(), "/absent/lengths.txt: there is no such file");
    assert!(failure("").to_string().starts_with("\"\": no cluster preset has this name"));
}

#[test]
fn a_byte_order_mark_is_no_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lengths.txt");
    fs::write(&path, "\u{feff}1024, 2048\n").expect("written");
    assert_eq!(presets::read_text(&path).expect("text"), "1024, 2048\n");
}

#[cfg(unix)]
#[test]
fn pipes_sockets_and_devices_are_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let message = "is a pipe, a socket or a device, expected a file";
    let (pipe, socket) = (folder.path().join("pipe"), folder.path().join("socket"));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    for path in [pipe.as_path(), &socket, Path::new("/dev/zero"), Path::new("/dev/null")] {
        let error = presets::read_text(path).expect_err("not a file");
        assert_eq!((error.message(), error.hint()), (message, Some("to read from a pipe, give /dev/stdin")));
        assert_eq!(presets::model(&path.to_string_lossy()).expect_err("not a file").message(), message);
        assert_eq!(failure(&path.to_string_lossy()).message(), message);
    }
}

#[test]
fn presets_of_the_other_kind_are_pointed_out() {
    let error = failure("Llama-3-8B");
    assert_eq!(
        error.to_string(),
        "Llama-3-8B: is a model, expected a cluster\n  = help: give it as the model, with --model"
    );
    for name in ["dgx-h100", "h100-2x8-rail"] {
        let error = presets::model(name).expect_err(name);
        assert_eq!(error.hint(), Some("give it as the cluster, with --cluster"));
    }
}

#[test]
fn a_folder_stands_for_its_config_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = "{\"hidden_size\": 64, \"num_attention_heads\": 4, \"num_hidden_layers\": 2, \
                \"intermediate_size\": 256, \"vocab_size\": 100}";
    fs::write(folder.path().join("config.json"), json).expect("written");
    let model = presets::model(&folder.path().to_string_lossy()).expect("a model");
    assert_eq!((model.layers, model.heads, model.kv_heads, model.head_dim), (2, 4, 4, 16));
}

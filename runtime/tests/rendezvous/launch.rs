//! Variables as the launchers set them, and as they must not be.

use ringlab_runtime::rendezvous::{Flags, Launch, LaunchError, Launcher, Variables};

const TORCHRUN: &str = "RANK=5 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 MASTER_ADDR=node0 \
                        MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0";
const SRUN: &str = "SLURM_PROCID=9 SLURM_NTASKS=16 SLURM_LOCALID=1 SLURM_JOB_ID=4711 SLURM_STEP_ID=2 \
                    SLURM_STEP_TASKS_PER_NODE=8(x2)";
const SRUN_UNEVEN: &str = "SLURM_PROCID=11 SLURM_NTASKS=16 SLURM_LOCALID=5 SLURM_JOB_ID=4711 SLURM_STEP_ID=2 \
                           SLURM_STEP_TASKS_PER_NODE=4(x2),8";
const MPIRUN: &str = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                      OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=prterun-n1-77@1";

fn variables(text: &str) -> Variables {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn resolve(text: &str) -> Result<Launch, LaunchError> {
    Launch::resolve(&variables(text), &Flags::default())
}

/// Rank, ranks, local rank, local ranks.
fn place(launch: &Launch) -> (u32, u32, u32, Option<u32>) {
    (launch.process, launch.processes, launch.local_process, launch.local_processes)
}

#[test]
fn each_launcher_says_who_a_process_is() {
    let cases = [
        (TORCHRUN, Launcher::Torchrun, (5, 16, 1, Some(4)), "none.node0.29500.0"),
        (SRUN, Launcher::Slurm, (9, 16, 1, Some(8)), "2.4711"),
        (MPIRUN, Launcher::OpenMpi, (3, 4, 1, Some(2)), "prterun-n1-77@1"),
        // Nodes that differ: how many share this one is not known.
        (SRUN_UNEVEN, Launcher::Slurm, (11, 16, 5, None), "2.4711"),
        ("HOME=/root", Launcher::Single, (0, 1, 0, Some(1)), "single"),
    ];
    for (text, launcher, expected, run_id) in cases {
        let launch = resolve(text).unwrap();
        assert_eq!((launch.launcher, place(&launch)), (launcher, expected), "{text}");
        assert_eq!(launch.run_id, run_id);
    }
}

#[test]
fn a_missing_variable_is_named_with_those_that_are_there() {
    for text in [TORCHRUN, SRUN, MPIRUN] {
        for needed in ["RANK", "SIZE", "NTASKS", "LOCAL_RANK", "LOCALID", "PROCID", "RUN_ID"] {
            let all = variables(text);
            let Some(name) = all.keys().find(|n| {
                let plain = n.as_str() == needed || n.ends_with(&format!("_{needed}"));
                plain && !n.contains("GROUP") && !n.contains("LOCAL_WORLD") && !n.contains("LOCAL_SIZE")
            }) else {
                continue;
            };
            let left: Variables =
                all.iter().filter(|(n, _)| *n != name).map(|(n, v)| (n.clone(), v.clone())).collect();
            if name == "SLURM_STEP_ID" || name == "SLURM_JOB_ID" {
                continue;
            }
            let error = Launch::resolve(&left, &Flags::default()).unwrap_err();
            let LaunchError::Partial { missing, have, .. } = &error else { panic!("{name}: {error}") };
            assert_eq!(missing, name);
            assert!(!have.split(", ").any(|h| h == name) && have.contains(", "), "{have}");
        }
    }
}

#[test]
fn a_batch_script_and_an_interactive_shell_of_slurm_are_single_processes() {
    let batch = "SLURM_PROCID=0 SLURM_NTASKS=16 SLURM_LOCALID=0 SLURM_JOB_ID=4711";
    assert_eq!(resolve(batch).unwrap().launcher, Launcher::Single);
    let shell = format!("{batch} SLURM_STEP_ID=4294967290");
    assert_eq!(resolve(&shell).unwrap().launcher, Launcher::Single);
    let error = resolve("SLURM_PROCID=3 SLURM_NTASKS=16 SLURM_LOCALID=0 SLURM_JOB_ID=4711").unwrap_err();
    assert!(error.to_string().contains("SLURM_STEP_ID is missing"), "{error}");
}

#[test]
fn torchrun_inside_srun_or_mpirun_is_torchruns_run() {
    let inside =
        format!("{TORCHRUN} SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_JOB_ID=1 SLURM_STEP_ID=0");
    assert_eq!(place(&resolve(&inside).unwrap()), (5, 16, 1, Some(4)));
    let inside = format!("{TORCHRUN} OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4");
    assert_eq!(resolve(&inside).unwrap().launcher, Launcher::Torchrun);
    let error = resolve(&format!("{TORCHRUN} OMPI_COMM_WORLD_SIZE=3")).unwrap_err().to_string();
    assert!(error.contains("WORLD_SIZE=16") && error.contains("OMPI_COMM_WORLD_SIZE=3"), "{error}");
}

#[test]
fn values_that_are_no_ranks_are_named() {
    let error = |text: &str| resolve(text).unwrap_err();
    let replaced = |from: &str, to: &str| error(&TORCHRUN.replace(from, to));
    assert_eq!(
        replaced("RANK=5", "RANK=five"),
        LaunchError::Malformed { name: "RANK".into(), value: "five".into() }
    );
    assert!(matches!(replaced("WORLD_SIZE=16", "WORLD_SIZE=-1"), LaunchError::Malformed { .. }));
    assert_eq!(
        replaced("RANK=5", "RANK=16"),
        LaunchError::OutOfRange {
            rank_name: "RANK".into(),
            rank: 16,
            size_name: "WORLD_SIZE".into(),
            size: 16
        }
    );
    assert!(replaced("LOCAL_RANK=1", "LOCAL_RANK=4").to_string().contains("LOCAL_RANK=4 is not below"));
}

#[test]
fn flags_win_and_must_be_whole() {
    let flags = Flags {
        rank: Some(1),
        world_size: Some(2),
        local_rank: Some(0),
        folder: Some("/shared".into()),
        ..Flags::default()
    };
    let launch = Launch::resolve(&variables(SRUN), &flags).unwrap();
    assert_eq!((launch.launcher, place(&launch)), (Launcher::Flags, (1, 2, 0, None)));

    let error = |flags: &Flags, text: &str| Launch::resolve(&variables(text), flags).unwrap_err().to_string();
    let half = Flags { world_size: None, ..flags.clone() };
    assert!(
        error(&half, "A=1").contains("--rank and --local-rank needs --world-size"),
        "{}",
        error(&half, "A=1")
    );
    let only_local = Flags { rank: None, ..half };
    assert!(
        error(&only_local, "A=1").contains("--local-rank needs --rank and --world-size"),
        "{}",
        error(&only_local, "A=1")
    );
    let contradiction = error(&flags, TORCHRUN);
    assert!(contradiction.contains("--rank 1") && contradiction.contains("RANK=5"), "{contradiction}");
    let placeless = Flags { folder: None, ..flags.clone() };
    assert!(error(&placeless, "A=1").contains("--rendezvous"));
    let homeless = Flags { local_rank: None, ..flags.clone() };
    assert!(error(&homeless, "A=1").contains("--local-rank"));
}

#[test]
fn ranks_are_shared_out_among_processes() {
    let single = resolve("A=1").unwrap();
    assert_eq!(single.ranks_each(None, 4), Ok(4), "one process takes all GPUs");
    assert_eq!(single.ranks_each(Some(8), 4), Ok(8));
    let one_a_node =
        TORCHRUN.replace("LOCAL_WORLD_SIZE=4", "LOCAL_WORLD_SIZE=1").replace("LOCAL_RANK=1", "LOCAL_RANK=0");
    assert_eq!(
        resolve(&one_a_node).unwrap().ranks_each(None, 8),
        Ok(8),
        "one process a node takes all of its GPUs"
    );
    let torchrun = resolve(TORCHRUN).unwrap();
    assert_eq!(torchrun.ranks_each(None, 4), Ok(1), "one process a rank");
    assert_eq!(torchrun.ranks_each(Some(32), 4), Ok(2));
    assert_eq!(torchrun.ranks_each(Some(24), 4), Err(LaunchError::Uneven { ranks: 24, processes: 16 }));
    let two = Launch { ranks_per_process: Some(2), ..torchrun };
    assert_eq!(two.ranks_each(None, 1), Ok(2));
    let product = LaunchError::Product { each: 2, processes: 16, product: 32, ranks: 16 };
    assert_eq!(two.ranks_each(Some(16), 1), Err(product));
}

#[test]
fn one_node_meets_in_the_temporary_folder_and_several_need_one() {
    let several = resolve(TORCHRUN).unwrap();
    assert!(several.meeting_place().unwrap_err().to_string().contains("--rendezvous"));
    let one = resolve(&TORCHRUN.replace("LOCAL_WORLD_SIZE=4", "LOCAL_WORLD_SIZE=16")).unwrap();
    assert_eq!(one.meeting_place().unwrap(), std::env::temp_dir());
}

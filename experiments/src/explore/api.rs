//! Questions and answers in JSON.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use ringlab_sim::config::in_words;
use ringlab_sim::problem::Pass;
use ringlab_sim::schedule::Schedule;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::coverage::{Coverage, coverage};
use super::limits;
use crate::predict::{DEFAULT_SEQ, Prediction, Report};
use crate::presets;
use crate::report::{self, view::View};
use crate::runfile::{self, Entry, Value};
use crate::setup::{Files, Setup};

/// A set-up by the names of the command line's options, and which pass to show.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The run file's keys.
    run: serde_json::Map<String, serde_json::Value>,
    /// The schedule to show; the first if there is no such one.
    #[serde(default)]
    show: String,
    /// The pass to show: `backward`, or the first.
    #[serde(default)]
    pass: String,
}

#[derive(Serialize)]
struct Answer<'a> {
    prediction: Report<'a>,
    title: String,
    heads: String,
    gpus: u32,
    device: &'a str,
    source: &'a str,
    command: String,
    toml: String,
    shown: &'a str,
    view: Option<View>,
    coverage: Option<Coverage>,
    /// Time that the server took.
    took_s: f64,
}

/// What was wrong, as the command line would say it.
#[derive(Serialize)]
struct Refusal {
    error: String,
}

fn refuse(status: StatusCode, error: String) -> Response {
    (status, Json(Refusal { error })).into_response()
}

#[derive(Serialize)]
struct Preset {
    name: &'static str,
    summary: String,
}

#[derive(Serialize)]
struct Cluster {
    name: &'static str,
    summary: String,
    gpus: u32,
    /// What a transfer inside a node reaches by copy engine, bytes a second; `null` for an infinite rate.
    copy_bandwidth: f64,
    /// The same by NCCL.
    nccl_bandwidth: f64,
    /// What one between nodes reaches, where there are several.
    nic_bandwidth: Option<f64>,
}

#[derive(Serialize)]
struct Presets {
    clusters: Vec<Cluster>,
    models: Vec<Preset>,
    schedules: Vec<String>,
    ranks: u32,
    tokens: u64,
}

/// Clusters of several nodes that the page offers beside the presets.
const SIZED: [&str; 4] = ["h100-2x8-rail", "h100-8x8-rail", "h100-16x8-rail", "h100-16x8-fat-tree-2to1"];

/// `GET /api/presets`: what can be chosen.
pub async fn presets() -> Response {
    let names = presets::cluster_names().into_iter().chain(SIZED);
    let clusters = names.filter_map(|name| {
        let c = presets::built_in_cluster(name)?.ok()?;
        Some(Cluster {
            name,
            summary: format!("{} x {} {}", c.nodes, c.gpus_per_node, c.device.name),
            gpus: c.gpus(),
            copy_bandwidth: c.fabric.copy.bandwidth.0,
            nccl_bandwidth: c.fabric.nccl.bandwidth.0,
            nic_bandwidth: c.network.filter(|_| c.nodes > 1).map(|n| n.transport.bandwidth.0),
        })
    });
    let models = presets::model_names().into_iter().filter_map(|name| {
        let m = presets::built_in_model(name)?.ok()?;
        let summary =
            format!("{} layers, {} query and {} kv heads of {}", m.layers, m.heads, m.kv_heads, m.head_dim);
        Some(Preset { name, summary })
    });
    Json(Presets {
        clusters: clusters.collect(),
        models: models.collect(),
        schedules: ringlab_sim::schedule::ALL.iter().map(ToString::to_string).collect(),
        ranks: limits::RANKS,
        tokens: limits::TOKENS,
    })
    .into_response()
}

/// `GET /api/preset/NAME`: its TOML, to start from.
pub async fn preset(Path(name): Path<String>) -> Response {
    match presets::cluster_text(&name).or_else(|| presets::model_text(&name)) {
        Some(text) => ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response(),
        None => refuse(StatusCode::NOT_FOUND, format!("there is no preset {name:?}")),
    }
}

/// `POST /api/simulate`: the prediction.
pub async fn simulate(
    State(simulations): State<Arc<Semaphore>>,
    question: Result<Json<Question>, JsonRejection>,
) -> Response {
    let question = match question {
        Ok(Json(question)) => question,
        Err(rejection) => return refuse(rejection.status(), said(&rejection)),
    };
    let Ok(permit) = simulations.acquire_owned().await else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping".into());
    };
    let work = tokio::task::spawn_blocking(move || {
        let _held_until_done = permit;
        answer(&question)
    });
    match work.await {
        Ok(Ok(json)) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Ok(Err(error)) => refuse(StatusCode::BAD_REQUEST, format!("{error:#}")),
        Err(_) => {
            let error = "the prediction failed on the server; its terminal says why";
            refuse(StatusCode::INTERNAL_SERVER_ERROR, error.into())
        }
    }
}

/// What is wrong with a request, and where.
fn said(rejection: &JsonRejection) -> String {
    let text = rejection.body_text();
    match text.rsplit_once(" at line ") {
        Some((message, place)) => format!("{} at line {place}", in_words(message)),
        None => text,
    }
}

/// The answer as JSON text.
fn answer(question: &Question) -> Result<Vec<u8>> {
    let start = Instant::now();
    let mut entries = entries(&question.run)?;
    let args = runfile::run_args(&entries)?;
    let setup = Setup::resolve(&args.setup, DEFAULT_SEQ, Files::Refused)?;
    let setup = setup.disturbed(args.disturb.repeats()?).with_nccl(&args.nccl)?;
    limits::check(&setup)?;
    let prediction = Prediction::of(&setup, true)?;
    let chosen = prediction.simulated.iter().position(|s| s.schedule.to_string() == question.show);
    let shown = &prediction.simulated[chosen.unwrap_or(0)];
    let backward = shown.passes.iter().find(|p| question.pass == p.plan.pass.to_string());
    let pass = backward.or(shown.passes.first()).context("no pass was asked for")?;
    let drawable = pass.timeline.spans.len() <= report::SPANS;
    keep_planned(&mut entries, &prediction);
    let answer = Answer {
        title: crate::commands::simulate::title(&setup),
        heads: heads(&setup),
        gpus: setup.cluster.gpus(),
        device: &setup.cluster.device.name,
        source: &setup.cluster.source,
        command: command(&entries),
        toml: runfile::to_toml(&entries),
        shown: &prediction.rows[chosen.unwrap_or(0)].schedule,
        view: drawable.then(|| View::of(pass)),
        coverage: matrix(&setup, shown.schedule, pass.plan.pass),
        took_s: start.elapsed().as_secs_f64(),
        prediction: prediction.report(&setup),
    };
    Ok(serde_json::to_vec(&answer)?)
}

/// A sequence that can be planned in full may be too short to be shrunk; then there is no matrix.
fn matrix(setup: &Setup, schedule: Schedule, pass: Pass) -> Option<Coverage> {
    coverage(setup, schedule, pass).ok().flatten()
}

/// The page leaves out schedules that cannot take the problem; the command line, which refuses them when they are
/// named, must not be told to try.
fn keep_planned(entries: &mut [Entry], prediction: &Prediction) {
    if prediction.left_out.is_empty() {
        return;
    }
    for entry in entries.iter_mut().filter(|e| e.key == "schedule") {
        entry.value = Value::List(prediction.rows.iter().map(|r| r.schedule.clone()).collect());
    }
}

fn heads(setup: &Setup) -> String {
    let s = &setup.problem.shape;
    format!("{} query and {} kv heads of {}, {}", s.heads, s.kv_heads, s.head_dim, s.dtype)
}

/// The command line, or a run file's where a text of several lines would be in it.
fn command(entries: &[Entry]) -> String {
    let inline = |e: &Entry| matches!(&e.value, Value::Text(t) if t.contains('\n'));
    if entries.iter().any(inline) {
        return "ringlab simulate --run ringlab.toml".into();
    }
    runfile::command_line("simulate", entries)
}

fn entries(run: &serde_json::Map<String, serde_json::Value>) -> Result<Vec<Entry>> {
    let entry = |(key, value): (&String, _)| Ok(Entry { key: key.clone(), value: plain(key, value)? });
    let mut entries = run.iter().map(entry).collect::<Result<Vec<_>>>()?;
    runfile::in_order(&mut entries);
    Ok(entries)
}

fn plain(key: &str, value: &serde_json::Value) -> Result<Value> {
    use serde_json::Value as Json;
    let scalar = |value: &Json| match value {
        Json::String(text) => Ok(text.clone()),
        Json::Number(number) => Ok(number.to_string()),
        _ => bail!("`{key}` is {value}, expected text, a number, true or false, or a list of these"),
    };
    Ok(match value {
        Json::Bool(flag) => Value::Flag(*flag),
        Json::Array(items) => Value::List(items.iter().map(scalar).collect::<Result<_>>()?),
        other => Value::Text(scalar(other)?),
    })
}

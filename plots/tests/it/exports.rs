use std::collections::BTreeMap;

use crate::timelines::{plans, simulate};
use ringlab_plots::{Panel, chrome, csv};
use ringlab_sim::plan::Lane;
use ringlab_sim::problem::Pass;
use ringlab_sim::timeline::{Span, SpanKind, Timeline};
use ringlab_sim::units::{Bytes, SimTime};
use serde_json::Value;

/// A kernel and a send, by hand.
fn tiny() -> Timeline {
    let kernel = Span {
        rank: 0,
        lane: Lane::COMPUTE,
        op: 0,
        step: 0,
        kind: SpanKind::Attend,
        start: SimTime(0),
        end: SimTime(1_500_001),
        bytes: Bytes(0),
        flops: 2.5e9,
    };
    let (start, end) = (SimTime(7), SimTime(3_000_000_000_000));
    let lane = Lane::comm(1);
    let send = Span {
        rank: 1,
        lane,
        op: 1,
        step: 2,
        kind: SpanKind::Send,
        start,
        end,
        bytes: Bytes(4096),
        flops: 0.0,
    };
    Timeline { ranks: 2, spans: vec![kernel, send], makespan: end }
}

#[test]
fn rows_of_a_tiny_timeline() {
    let timeline = tiny();
    let expected = "\
schedule,rank,lane,kind,label,step,start_s,end_s,bytes,flops
\"a, \"\"quoted\"\" name\",0,0,attend,attend,0,0.000000000000,0.000001500001,0,2500000000
\"a, \"\"quoted\"\" name\",1,2,send,send,2,0.000000000007,3.000000000000,4096,0
";
    assert_eq!(csv::timeline(&[Panel::new("a, \"quoted\" name", &timeline)]), expected);
}

#[test]
fn events_of_a_tiny_timeline() {
    let mut timeline = tiny();
    timeline.spans[1].flops = f64::NAN;
    let expected = r#"{"displayTimeUnit":"ns","traceEvents":[
{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"\"x\" rank 0"}},
{"ph":"M","name":"process_sort_index","pid":0,"tid":0,"args":{"sort_index":0}},
{"ph":"M","name":"thread_name","pid":0,"tid":0,"args":{"name":"compute"}},
{"ph":"M","name":"thread_sort_index","pid":0,"tid":0,"args":{"sort_index":0}},
{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"\"x\" rank 1"}},
{"ph":"M","name":"process_sort_index","pid":1,"tid":0,"args":{"sort_index":1}},
{"ph":"M","name":"thread_name","pid":1,"tid":131072,"args":{"name":"communication 1"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":131072,"args":{"sort_index":131072}},
{"ph":"X","name":"attend","cat":"attend","pid":0,"tid":0,"ts":0.000000,"dur":1.500001,"args":{"step":0,"bytes":0,"flops":2500000000.0,"label":"attend"}},
{"ph":"X","name":"send","cat":"send","pid":1,"tid":131072,"ts":0.000007,"dur":2999999.999993,"args":{"step":2,"bytes":4096,"flops":null,"label":"send"}}
]}
"#;
    let trace = chrome::trace(&[Panel::new("\"x\"", &timeline)]);
    assert_eq!(String::from_utf8(trace).unwrap(), expected);
}

fn number(event: &Value, name: &str) -> f64 {
    event[name].as_f64().unwrap()
}

fn picoseconds(event: &Value, name: &str) -> u64 {
    (number(event, name) * 1e6).round() as u64
}

/// Events of one phase.
fn phase<'a>(events: &'a [Value], ph: &str) -> Vec<&'a Value> {
    events.iter().filter(|e| e["ph"] == ph).collect()
}

#[test]
fn traces_have_every_span_and_every_message() {
    for pass in [Pass::Forward, Pass::Backward] {
        let plans = plans(5, pass);
        let timelines: Vec<Timeline> = plans.iter().map(simulate).collect();
        let panels: Vec<Panel> =
            plans.iter().zip(&timelines).map(|(p, t)| Panel::new(p.name.clone(), t).with_plan(p)).collect();
        let trace: Value = serde_json::from_slice(&chrome::trace(&panels)).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let spans = phase(events, "X");
        let all: Vec<&Span> = timelines.iter().flat_map(|t| &t.spans).collect();
        assert_eq!(spans.len(), all.len());
        for (event, span) in spans.iter().zip(all) {
            assert_eq!(picoseconds(event, "ts"), span.start.0);
            assert_eq!(picoseconds(event, "dur"), span.duration().0);
            assert_eq!(event["args"]["bytes"], span.bytes.0);
        }
        let processes: Vec<&str> = phase(events, "M")
            .into_iter()
            .filter(|e| e["name"] == "process_name")
            .map(|e| e["args"]["name"].as_str().unwrap())
            .collect();
        assert_eq!((processes.len(), processes[0], processes[6]), (20, "ring rank 0", "zigzag rank 1"));
        let messages: usize = plans.iter().map(|p| p.messages.len()).sum();
        check_flows(events, &spans, messages);
    }
}

fn check_flows(events: &[Value], spans: &[&Value], messages: usize) {
    let ends = |ph: &str| -> BTreeMap<u64, &Value> {
        phase(events, ph).into_iter().map(|e| (e["id"].as_u64().unwrap(), e)).collect()
    };
    let (starts, finishes) = (ends("s"), ends("f"));
    assert_eq!((starts.len(), phase(events, "s").len()), (messages, messages));
    assert_eq!((finishes.len(), phase(events, "f").len()), (messages, messages));
    let slice = |flow: &Value, kind: &str| {
        let at = picoseconds(flow, "ts");
        let found = spans.iter().find(|s| {
            let begin = picoseconds(s, "ts");
            let inside = (begin..begin + picoseconds(s, "dur")).contains(&at);
            s["cat"] == kind && s["pid"] == flow["pid"] && s["tid"] == flow["tid"] && inside
        });
        (*found.unwrap_or_else(|| panic!("{flow} is in no {kind}"))).clone()
    };
    for (id, start) in starts {
        let finish = finishes[&id];
        assert!(picoseconds(start, "ts") <= picoseconds(finish, "ts"));
        assert_eq!(slice(start, "send")["args"]["label"], slice(finish, "recv")["args"]["label"]);
    }
}

#[test]
fn a_message_with_one_end_has_no_flow() {
    let plans = plans(2, Pass::Forward);
    let mut timeline = simulate(&plans[0]);
    timeline.spans.retain(|s| s.kind != SpanKind::Recv);
    let trace = chrome::trace(&[Panel::new("half", &timeline).with_plan(&plans[0])]);
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    assert!(phase(trace["traceEvents"].as_array().unwrap(), "s").is_empty());
}

#[test]
fn slices_of_one_thread_do_not_overlap() {
    let at = |op, start, end| {
        let base = tiny().spans[1];
        Span { op, start: SimTime(start), end: SimTime(end), ..base }
    };
    let spans = vec![at(0, 0, 10), at(1, 5, 15), at(2, 5, 20), at(3, 10, 30), at(4, 30, 40)];
    let timeline = Timeline { ranks: 2, spans, makespan: SimTime(40) };
    let trace = chrome::trace(&[Panel::new("overlapping", &timeline)]);
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let slices = phase(trace["traceEvents"].as_array().unwrap(), "X");
    let mut threads = BTreeMap::<u64, Vec<(u64, u64)>>::new();
    for s in &slices {
        let begin = picoseconds(s, "ts");
        threads.entry(s["tid"].as_u64().unwrap()).or_default().push((begin, begin + picoseconds(s, "dur")));
    }
    assert_eq!((slices.len(), threads.len()), (5, 3));
    for mut slices in threads.into_values() {
        slices.sort_unstable();
        assert!(slices.windows(2).all(|w| w[0].1 <= w[1].0), "{slices:?}");
    }
}

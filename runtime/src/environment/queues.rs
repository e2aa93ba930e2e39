//! Settings of CUDA: how work is queued, and which GPUs there are.

use super::{Advice, Finding, QUEUES, Situation, Variables, finding, is_on, number};

pub(super) fn of(name: &str, value: &str, s: &Situation<'_>) -> Option<Finding> {
    match name {
        "CUDA_LAUNCH_BLOCKING" if is_on(value) => Some(blocking(s)),
        "CUDA_DEVICE_MAX_CONNECTIONS" => connections(value, s),
        "CUDA_VISIBLE_DEVICES" => visible(value, s),
        _ => None,
    }
}

fn blocking(s: &Situation<'_>) -> Finding {
    let what = if s.communicates() {
        "the host waits for every kernel before it posts the next operation: lanes run one after the other, and all \
         communication is exposed"
    } else {
        "the host waits for every kernel before it posts the next one: launch times add to the makespan"
    };
    finding(what, "unset it; it is for debugging")
}

fn connections(value: &str, s: &Situation<'_>) -> Option<Finding> {
    let Some(queues) = number(value) else {
        return Some(finding(
            "not a number: CUDA takes its default of 8",
            format!("{QUEUES} or more, up to 32"),
        ));
    };
    let lanes = s.lanes();
    if queues >= u64::from(QUEUES) || !s.communicates() {
        return None;
    }
    let effect = match queues {
        1 => "all streams share one hardware queue: communication that is posted after a kernel waits for it, and a stream \
              that waits for a flag can stop the one that raises it"
            .to_owned(),
        n if n < lanes as u64 => format!(
            "{lanes} lanes of a rank share {n} hardware queues: some communication waits for kernels that were posted before it"
        ),
        n => format!(
            "{n} hardware queues for {lanes} lanes and the executor's own streams: a stream that waits for a flag can hold \
             up another"
        ),
    };
    Some(finding(effect, format!("{QUEUES} or more, up to 32")))
}

fn visible(value: &str, s: &Situation<'_>) -> Option<Finding> {
    let listed: Vec<&str> = value.split(',').map(str::trim).filter(|g| !g.is_empty()).collect();
    let mut distinct = listed.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() < listed.len() {
        return Some(finding("names a GPU twice: CUDA then shows none of them", "each GPU once"));
    }
    (listed.len() < s.ranks_here as usize).then(|| {
        finding(
            format!("shows {} GPUs to a process of {} ranks", listed.len(), s.ranks_here),
            "one GPU for each of the process's ranks, or --virtual",
        )
    })
}

pub(super) fn missing(variables: &Variables, s: &Situation<'_>) -> Option<Advice> {
    let name = "CUDA_DEVICE_MAX_CONNECTIONS";
    (!variables.contains_key(name) && s.communicates()).then(|| Advice {
        variable: name.into(),
        value: None,
        effect: format!(
            "CUDA's default of 8 hardware queues for {} lanes and the executor's own streams: a stream that waits for a flag \
             can hold up another",
            s.lanes()
        ),
        instead: format!("{QUEUES} or more, up to 32"),
    })
}

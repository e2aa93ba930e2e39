//! The variables that decide speed, and which of them hurt the plans that ran.

use ringlab_runtime::environment::{Advice, Situation, Variable, Variables, advise, recorded};
use serde::Serialize;

use super::Done;
use super::prepare;
use super::world::World;
use crate::args::{Backend, RunArgs};
use crate::setup::Setup;

/// Variables and advice of a run; empty on CPUs, whose speed none of them decides.
#[derive(Serialize, Default, schemars::JsonSchema)]
pub struct Environment {
    #[schemars(with = "Vec<serde_json::Value>")]
    pub variables: Vec<Variable>,
    /// Variables that nobody had set, and that this program set for itself.
    pub set_here: Vec<String>,
    pub advice: Vec<Hint>,
}

/// Advice, and which plans it is for.
#[derive(Serialize, schemars::JsonSchema)]
pub struct Hint {
    #[serde(flatten)]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub advice: Advice,
    pub plans: Vec<String>,
}

impl Environment {
    /// What is to be said of `variables` for the plans that ran.
    pub fn of(args: &RunArgs, setup: &Setup, world: &World, variables: &Variables, done: &[Done]) -> Self {
        if args.backend == Backend::Cpu {
            return Self::default();
        }
        let mut advice: Vec<Hint> = Vec::new();
        for pass in done {
            let situation = Situation {
                plan: &pass.plan,
                metrics: Some(&pass.metrics),
                cluster: &setup.cluster,
                ranks_here: world.ranks_here(),
                nodes: world.nodes(),
                persistent: pass.executed.gpu.as_ref().is_some_and(|g| g.mode.starts_with("fused")),
                max_ctas: args.gpu.nccl.ctas,
            };
            for found in advise(variables, &situation) {
                let plan = format!("{} {}", pass.plan.name, pass.plan.pass);
                match advice.iter_mut().find(|h| h.advice == found) {
                    Some(hint) => hint.plans.push(plan),
                    None => advice.push(Hint { advice: found, plans: vec![plan] }),
                }
            }
        }
        Self { variables: recorded(variables), set_here: prepare::set_here(variables), advice }
    }

    /// As lines below a table.
    pub fn lines(&self, plans: usize) -> String {
        let mut text = String::new();
        if !self.variables.is_empty() {
            let set = self.variables.iter().map(|v| format!("{}={}", v.name, v.value)).collect::<Vec<_>>();
            text += &format!("  environment: {}\n", set.join(" "));
            if !self.set_here.is_empty() {
                text += &format!("  nobody had set {}; this program did\n", self.set_here.join(" and "));
            }
        }
        for hint in &self.advice {
            let Advice { variable, value, effect, instead } = &hint.advice;
            let setting = match value {
                Some(value) => format!("{variable}={value}"),
                None => format!("{variable} is not set"),
            };
            let whose = if hint.plans.len() == plans {
                String::new()
            } else {
                format!(" ({})", hint.plans.join(", "))
            };
            text += &format!("  advice{whose}: {setting}: {effect}; set {instead}\n");
        }
        text
    }
}

//! The guides' claims, each held against arithmetic that is done here.

mod claims;

use anyhow::Result;
use serde::Serialize;

use super::compare::{Comparison, compare};
use crate::presets;

pub use claims::{Claim, Finding};

/// The audit of both guides.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Audit {
    /// Version of the format.
    pub version: u32,
    /// The claims.
    pub claims: Vec<Claim>,
    /// The guides' comparison of systems, computed.
    pub comparison: Comparison,
}

/// The cluster, model and length that the comparison is made for unless told otherwise.
pub const DEFAULT: (&str, &str, u64) = ("dgx-h100", "llama-3-8b", 128 * 1024);

/// Audits the guides; the comparison of systems is made for the cluster and model named.
///
/// # Errors
/// A cluster or model that does not exist, or that the schedules refuse.
pub fn audit(cluster: &str, model: &str, seq: u64) -> Result<Audit> {
    let (cluster, model) = (presets::cluster(cluster)?, presets::model(model)?);
    Ok(Audit { version: 1, claims: claims::all()?, comparison: compare(&cluster, &model, seq)? })
}

impl Audit {
    /// The page as Markdown.
    pub fn markdown(&self) -> String {
        let refuted = self.claims.iter().filter(|c| c.finding == Finding::Refuted).count();
        let mut text = format!(
            "# Audit of the guides\n\n{refuted} of {} claims are refuted. Every number below is computed when the page is \
             made.\n\n",
            self.claims.len()
        );
        for (i, claim) in self.claims.iter().enumerate() {
            text += &format!(
                "## {}. {}\n\n- Claim ({}): {}\n- Finding: **{}**\n- Arithmetic: {}\n",
                i + 1,
                claim.subject,
                claim.guide,
                claim.claim,
                claim.finding.name(),
                claim.arithmetic
            );
            if let Some(belongs) = &claim.belongs_to {
                text += &format!("- Where the figure belongs: {belongs}\n");
            }
            text += "\n";
        }
        text += "## Comparison of systems, computed\n\n";
        text += &self.comparison.markdown();
        text
    }

    /// The page as one HTML file without scripts or outside references.
    pub fn html(&self) -> String {
        let mut body = String::from(
            "<h1>Audit of the guides</h1>\n<table>\n<tr><th>subject<th>claim<th>finding<th>arithmetic</tr>\n",
        );
        for c in &self.claims {
            let belongs = c
                .belongs_to
                .as_ref()
                .map_or(String::new(), |b| format!("<p><em>Belongs to:</em> {}", escape(b)));
            body += &format!(
                "<tr class=\"{}\"><td>{}<td>{} <small>({})</small><td>{}<td>{}{belongs}</tr>\n",
                c.finding.name(),
                escape(&c.subject),
                escape(&c.claim),
                escape(c.guide),
                c.finding.name(),
                escape(&c.arithmetic)
            );
        }
        body += "</table>\n<h2>Comparison of systems, computed</h2>\n";
        body += &table(&self.comparison.markdown());
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Audit of the guides</title>\n<style>{STYLE}\
             </style>\n{body}</html>\n"
        )
    }
}

const STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:80em;margin:2em auto;padding:0 1em}\
                     table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:.4em .6em;text-align:left;\
                     vertical-align:top}tr.refuted td:nth-child(3){background:#fdd}tr.holds td:nth-child(3)\
                     {background:#dfd}";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A Markdown table with the lines around it.
fn table(markdown: &str) -> String {
    let mut html = String::new();
    let mut open = false;
    for line in markdown.lines().filter(|l| !l.is_empty() && !l.starts_with("|---")) {
        let Some(cells) = line.strip_prefix("| ").and_then(|l| l.strip_suffix(" |")) else {
            html += if open { "</table>\n" } else { "" };
            open = false;
            html += &format!("<p>{}</p>\n", escape(line));
            continue;
        };
        html += if open { "" } else { "<table>\n" };
        let tag = if open { "td" } else { "th" };
        open = true;
        html += "<tr>";
        for cell in cells.split(" | ") {
            html += &format!("<{tag}>{}</{tag}>", escape(cell));
        }
        html += "</tr>\n";
    }
    html + if open { "</table>\n" } else { "" }
}

//! What a bar's colour says.

use ringlab_sim::plan::{Block, MaskId, Rank};
use ringlab_sim::timeline::{Span, SpanKind};

use crate::Panel;
use crate::palette;
use crate::svg::INK;

/// Which of a rank's rows a span is drawn in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Track {
    /// Kernels.
    Compute,
    /// Messages that leave.
    Send,
    /// Messages that arrive.
    Receive,
}

/// What a span is drawn as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Attention of the rank's own queries, every pair unmasked.
    Own,
    /// Attention of the rank's own queries over a block that the mask cuts.
    OwnMasked,
    /// Attention of another rank's queries.
    Help,
    /// Attention of another rank's queries over a block that the mask cuts.
    HelpMasked,
    /// Merging states, adding gradients.
    Reduce,
    /// Preprocessing and finishing.
    RowWise,
    /// A message leaving.
    Send,
    /// A message arriving.
    Receive,
}

/// All classes, in the legend's order.
pub const CLASSES: [Class; 8] = [
    Class::Own,
    Class::OwnMasked,
    Class::Help,
    Class::HelpMasked,
    Class::Reduce,
    Class::RowWise,
    Class::Send,
    Class::Receive,
];

impl Class {
    /// Masked attention is attention of a block that the mask cuts; helping is attention of queries of which the rank
    /// owns none.
    pub fn of(panel: &Panel<'_>, span: &Span) -> Self {
        match span.kind {
            SpanKind::Send => Self::Send,
            SpanKind::Recv => Self::Receive,
            SpanKind::Merge | SpanKind::Accumulate => Self::Reduce,
            SpanKind::Preprocess | SpanKind::Finish | SpanKind::Project | SpanKind::Softmax => Self::RowWise,
            SpanKind::Attend | SpanKind::AttendBackward | SpanKind::Score | SpanKind::Weigh => {
                let Some((q, _, mask)) = attended(panel, span) else { return Self::Own };
                match (owns_any(q, span.rank), mask == MaskId::NONE) {
                    (true, true) => Self::Own,
                    (true, false) => Self::OwnMasked,
                    (false, true) => Self::Help,
                    (false, false) => Self::HelpMasked,
                }
            }
        }
    }

    /// The row it belongs to.
    pub fn track(self) -> Track {
        match self {
            Self::Send => Track::Send,
            Self::Receive => Track::Receive,
            _ => Track::Compute,
        }
    }

    /// Its colour, under any hatching.
    pub fn colour(self) -> &'static str {
        match self {
            Self::Own => palette::BLUE,
            Self::OwnMasked => palette::LIGHT_BLUE,
            Self::Help => palette::ORANGE,
            Self::HelpMasked => palette::LIGHT_ORANGE,
            Self::Reduce => palette::BLACK,
            Self::RowWise => palette::PURPLE,
            Self::Send => palette::VERMILLION,
            Self::Receive => palette::LIGHT_GREEN,
        }
    }

    /// Angle in degrees and colour of its hatching.
    pub fn hatching(self) -> Option<(i32, &'static str)> {
        match self {
            Self::OwnMasked => Some((45, palette::BLUE)),
            Self::HelpMasked => Some((-45, "#8A5F00")),
            Self::RowWise => Some((0, "#7A3B5E")),
            _ => None,
        }
    }

    /// What it is painted with: a colour or a pattern of `patterns`.
    pub fn paint(self) -> &'static str {
        match self {
            Self::OwnMasked => "url(#own-masked)",
            Self::HelpMasked => "url(#help-masked)",
            Self::RowWise => "url(#row-wise)",
            plain => plain.colour(),
        }
    }

    /// Colour of text on it.
    pub fn ink(self) -> &'static str {
        match self {
            Self::Own | Self::Reduce | Self::Send => "#ffffff",
            _ => INK,
        }
    }

    /// Its entry in the legend.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "attention, own queries",
            Self::OwnMasked => "own queries, masked block",
            Self::Help => "another rank's queries",
            Self::HelpMasked => "another rank's, masked block",
            Self::Reduce => "merge, accumulate",
            Self::RowWise => "preprocess, finish",
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }
}

fn owns_any(block: &Block, rank: Rank) -> bool {
    block.slots.iter().any(|s| s.rank == rank)
}

/// Queries, keys and mask of an attention span.
fn attended<'a>(panel: &Panel<'a>, span: &Span) -> Option<(&'a Block, &'a Block, MaskId)> {
    let plan = panel.plan?;
    let (q, kv, mask) = panel.op(span)?.kind.attended()?;
    Some((plan.block(q), plan.block(kv), mask))
}

/// Texts for the inside of a bar, longest first: whose queries and keys, and for lack of room only what is not the
/// rank's own.
pub(crate) fn inscriptions(panel: &Panel<'_>, span: &Span) -> Vec<String> {
    let Some((q, kv, _)) = attended(panel, span) else { return vec![span.kind.name().to_owned()] };
    let names = |block: &Block| {
        let mut owners: Vec<Rank> = block.slots.iter().map(|s| s.rank).collect();
        owners.dedup();
        owners.iter().map(Rank::to_string).collect::<Vec<_>>().join("+")
    };
    let (q_name, kv_name) = (format!("q{}", names(q)), format!("kv{}", names(kv)));
    let short = if owns_any(q, span.rank) { kv_name.clone() } else { q_name.clone() };
    vec![format!("{q_name} × {kv_name}"), short]
}

/// The patterns that [`Class::paint`] names.
pub(crate) fn patterns() -> String {
    let pattern = |class: Class| {
        let id = class.paint().strip_prefix("url(#")?.strip_suffix(')')?;
        let (angle, stroke) = class.hatching()?;
        Some(format!(
            "<pattern id=\"{id}\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate({angle})\"><rect x=\"-1\" y=\"-1\" width=\"7\" height=\"7\" fill=\"{}\"/>\
             <rect x=\"2\" y=\"-1\" width=\"1.3\" height=\"7\" fill=\"{stroke}\"/></pattern>\n",
            class.colour()
        ))
    };
    CLASSES.into_iter().filter_map(pattern).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::palette::vision::{DEUTERANOPIA, NORMAL, PROTANOPIA, distance, lightness};

    /// Colours that touch: classes of one row, and that row's ground.
    fn neighbours() -> Vec<(&'static str, &'static str, bool)> {
        let mut pairs = Vec::new();
        for (i, a) in CLASSES.into_iter().enumerate() {
            for &b in &CLASSES[i + 1..] {
                let communicates = a.track() != Track::Compute && b.track() != Track::Compute;
                if a.track() == b.track() || communicates {
                    pairs.push((a.colour(), b.colour(), a.hatching() != b.hatching()));
                }
            }
            let ground = if a.track() == Track::Compute { palette::IDLE } else { "#ffffff" };
            pairs.push((a.colour(), ground, a.hatching().is_some()));
        }
        pairs
    }

    #[test]
    fn colour_blind_readers_tell_them_apart() {
        for (a, b, _) in neighbours() {
            for (eye, name) in
                [(NORMAL, "normal"), (PROTANOPIA, "protanopia"), (DEUTERANOPIA, "deuteranopia")]
            {
                let distance = distance(a, b, &eye);
                assert!(distance > 20.0, "{a} and {b}, {name}: {distance}");
            }
        }
    }

    #[test]
    fn black_and_white_tells_them_apart() {
        for (a, b, hatching_differs) in neighbours() {
            let difference = (lightness(a) - lightness(b)).abs();
            assert!(difference > 18.0 || hatching_differs, "{a} and {b}: {difference}");
        }
    }

    #[test]
    fn text_on_a_bar_has_contrast() {
        for class in CLASSES {
            let difference = (lightness(class.colour()) - lightness(class.ink())).abs();
            assert!(difference > 40.0, "{class:?}: {difference}");
        }
    }

    #[test]
    fn every_hatching_has_its_pattern() {
        let patterns = patterns();
        for class in CLASSES {
            let id = class.paint().strip_prefix("url(#").map(|id| id.trim_end_matches(')'));
            assert_eq!(id.is_some(), class.hatching().is_some());
            assert!(id.is_none_or(|id| patterns.contains(&format!("id=\"{id}\""))));
        }
    }
}

//! What a GPU is told: plain data, so that a plan can be lowered, checked and run on a made-up GPU alike.

use ringlab_kernels::spec::{BackwardSpec, Dims, Finished, ForwardSpec, State, Tensor};
use ringlab_sim::plan::Rank;

/// A device address, valid on every GPU of the process.
pub(super) type Address = u64;

/// A mark in a stream of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Event(pub usize);

/// A kernel with its arguments, ready to be launched on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Launch(pub usize);

/// Rows of bytes on their way, their starts a pitch apart on either side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strip {
    pub to: Address,
    pub from: Address,
    pub rows: usize,
    pub row_bytes: usize,
    pub to_pitch: usize,
    pub from_pitch: usize,
}

impl Strip {
    pub fn bytes(&self) -> usize {
        self.rows * self.row_bytes
    }
}

/// One end of a message through NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parcel {
    pub peer: Rank,
    pub sends: bool,
    pub at: Address,
    pub bytes: usize,
}

/// One entry of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    /// Goes on once the event's last recording has been reached.
    Await(Event),
    /// Marks this place.
    Record(Event),
    /// Goes on once the flag is raised.
    AwaitFlag(Address),
    /// Raises a flag, on any GPU; everything before is visible there first.
    RaiseFlag(Address),
    Copy(Strip),
    Fill {
        at: Address,
        bytes: usize,
        byte: u8,
    },
    Launch(Launch),
    /// A group of sends and receives on the communicator of its lane.
    Exchange(Vec<Parcel>),
}

/// A command and its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Post {
    pub stream: usize,
    pub command: Command,
    /// Only serves measuring.
    pub timing: bool,
}

/// What numbers are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    F32,
    Rounded,
}

impl Number {
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Rounded => 2,
        }
    }
}

/// A kernel to be prepared.
#[derive(Debug, Clone)]
pub(super) enum Kernel<'a> {
    Forward(ForwardSpec<'a>),
    Backward(BackwardSpec<'a>),
    /// delta = rowsum(o * do).
    Preprocess {
        dims: Dims,
        tokens: usize,
        o: Tensor,
        d_o: Tensor,
        delta: Address,
    },
    Merge {
        dims: Dims,
        tokens: usize,
        into: State,
        from: State,
    },
    Finalise {
        dims: Dims,
        tokens: usize,
        state: State,
        out: Finished,
    },
    /// fp32 to the 16-bit type.
    Round {
        dims: Dims,
        tokens: usize,
        from: Tensor,
        to: Tensor,
    },
    Add {
        dims: Dims,
        number: Number,
        strip: Strip,
    },
}

//! Everything that happens once before the runs: which operations are folded, memory, kernels, programs, inputs.

use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use ringlab_kernels::gpu::GpuError;
use ringlab_kernels::spec::{Dtype, HeadDim, WorkOrder};
use ringlab_sim::plan::{Plan, Rank};
use ringlab_sim::problem;
use ringlab_sim::units::Bytes;

use super::bodies::{Lowered, Lowering};
use super::clock::{Barrier, Clock};
use super::command::{Address, Event, Parcel};
use super::device::Gpu;
use super::error::CudaError;
use super::filler::{Candidate, candidate};
use super::flags::Flags;
use super::folds::Folds;
use super::lanes::{Program, one_by_one};
use super::lower::Common;
use super::memory::Memory;
use super::mode::{Choice, choose};
use super::options::{Mode, Options};
use super::sequence::Step;
use super::tensors::{self, Holder};
use crate::cpu::memory::regions;
use crate::cpu::tensors::real_tokens;
use crate::inputs::Inputs;
use crate::parallel;
use crate::region::Region;

/// A rank of this process and its GPU.
#[derive(Clone)]
pub(super) struct Member {
    pub rank: Rank,
    pub gpu: Arc<dyn Gpu>,
}

/// All ranks of this process.
#[derive(Clone)]
pub(super) struct Members {
    pub all: Vec<Member>,
    /// Whether they share one GPU.
    pub are_virtual: bool,
    /// Whether they start at a barrier, for want of a way to each other's flags.
    pub by_barrier: bool,
}

/// What the runs need.
pub(super) struct Session<'a> {
    pub plan: &'a Plan,
    pub inputs: &'a Inputs,
    pub options: &'a Options,
    pub members: Vec<Member>,
    /// One a member; of virtual ranks, one for all.
    pub programs: Vec<Program>,
    /// By GPU: what it can be kept busy with.
    pub candidates: Vec<Option<Candidate>>,
    pub memories: Vec<Memory>,
    pub folds: Vec<Folds>,
    pub flags: Flags,
    pub clock: Clock,
    /// By member: flags are lowered, and the pass has ended.
    pub lowered: Vec<Event>,
    pub finished: Vec<Event>,
    pub is_virtual: bool,
    /// Whether a stream gets more commands than a GPU takes ahead, so that gates are opened before posting.
    pub is_deep: bool,
    pub mode: Mode,
    pub notes: Vec<String>,
    pub peak_bytes: Vec<Bytes>,
    pub dtype: Dtype,
    pub real: Vec<Option<usize>>,
    pub regions: Vec<Arc<Region>>,
    /// By member: what each buffer holds in the end.
    pub held: Vec<Vec<Option<Arc<Region>>>>,
}

/// Calls that a stream which waits surely takes; at about a thousand the driver blocks.
const AHEAD: usize = 600;

/// The kernels' element type and head dimension.
pub(super) fn kernel_types(plan: &Plan) -> Result<(Dtype, HeadDim), CudaError> {
    let dtype = match plan.shape.dtype {
        problem::Dtype::Bf16 => Dtype::Bf16,
        problem::Dtype::Fp16 => Dtype::F16,
        other => return Err(CudaError::Dtype(other)),
    };
    let head_dim = HeadDim::try_from(plan.shape.head_dim as usize);
    Ok((dtype, head_dim.map_err(|_| CudaError::HeadDim(plan.shape.head_dim))?))
}

impl<'a> Session<'a> {
    pub fn new(
        plan: &'a Plan,
        inputs: &'a Inputs,
        options: &'a Options,
        members: Members,
    ) -> Result<Self, CudaError> {
        let is_virtual = members.are_virtual;
        let is_timed = !options.sustain.is_zero() || !options.window.is_zero();
        if members.all.len() < plan.programs.len() && is_timed {
            return Err(CudaError::Sustained);
        }
        let types = kernel_types(plan)?;
        let choice = choose(plan, options.mode, is_virtual)?;
        let room = Room::allocate(plan, &members.all, &choice)?;
        let work = Work::of((plan, types), options, &members, (&choice, &room))?;
        let is_deep = !is_virtual && work.programs.iter().any(|program| program.depth() > AHEAD);
        let mut notes = choice.notes;
        notes.extend(remarks(plan, is_deep));
        let (clock, [lowered, finished]) = timing(plan, &members)?;
        Ok(Self {
            plan,
            inputs,
            options,
            programs: work.programs,
            candidates: work.candidates,
            peak_bytes: peak_bytes(plan, &room.memories, &work.packed),
            memories: room.memories,
            flags: room.flags,
            clock,
            lowered,
            finished,
            is_virtual,
            is_deep,
            mode: choice.mode,
            notes,
            dtype: types.0,
            real: real_tokens(&plan.layout),
            held: work.held,
            members: members.all,
            folds: choice.folds,
            regions: room.regions,
        })
    }

    /// Every member's memory.
    pub fn holders(&self) -> impl Iterator<Item = Holder<'_>> {
        let all = self.members.iter().zip(&self.memories);
        all.map(|(m, memory)| Holder { rank: m.rank, gpu: m.gpu.as_ref(), memory })
    }

    /// Uploads every rank's inputs.
    pub fn upload(&self) -> Result<(), CudaError> {
        let holders: Vec<Holder<'_>> = self.holders().collect();
        let upload = |holder: &Holder<'_>| {
            tensors::scatter(self.plan, self.inputs, (&self.real, &self.regions), self.dtype, holder)
        };
        parallel::map(&holders, upload).into_iter().collect()
    }
}

/// What members have on their GPUs.
struct Room {
    regions: Vec<Arc<Region>>,
    memories: Vec<Memory>,
    flags: Flags,
}

impl Room {
    fn allocate(plan: &Plan, members: &[Member], choice: &Choice) -> Result<Self, CudaError> {
        let by_segments = choice.mode == Mode::FusedSegments;
        let allocated = |m: &Member| allocate(plan, m, &choice.folds[m.rank as usize], by_segments);
        let memories = members.iter().map(allocated).collect::<Result<_, _>>()?;
        Ok(Self { regions: regions(plan), memories, flags: allocate_flags(plan, members)? })
    }
}

/// What members do.
struct Work {
    programs: Vec<Program>,
    candidates: Vec<Option<Candidate>>,
    packed: Vec<usize>,
    held: Vec<Vec<Option<Arc<Region>>>>,
}

impl Work {
    fn of(
        (plan, (dtype, head_dim)): (&Plan, (Dtype, HeadDim)),
        options: &Options,
        members: &Members,
        (choice, room): (&Choice, &Room),
    ) -> Result<Self, CudaError> {
        let by_segments = choice.mode == Mode::FusedSegments;
        let common = Common {
            plan,
            regions: &room.regions,
            dtype,
            head_dim,
            deterministic: options.deterministic,
            order: if by_segments { WorkOrder::SegmentMajor } else { WorkOrder::QueryMajor },
        };
        let lowering = Lowering {
            common: &common,
            options,
            members: &members.all,
            are_virtual: members.are_virtual,
            memories: &room.memories,
            folds: &choice.folds,
            flags: &room.flags,
        };
        let lowered = lowering.run()?;
        let programs = programs(&lowering, &lowered, &choice.order)?;
        let candidates = (members.all.iter().zip(&lowered.bodies).take(programs.len()))
            .map(|(member, bodies)| candidate(plan, member, bodies))
            .collect();
        Ok(Self { programs, candidates, packed: lowered.packed, held: lowered.held })
    }
}

/// One a member; of virtual ranks, one for all, which has the operations in their `order`.
fn programs(lowering: &Lowering<'_>, lowered: &Lowered, order: &[Step]) -> Result<Vec<Program>, CudaError> {
    if lowering.are_virtual {
        let gpu = lowering.members[0].gpu.as_ref();
        return Ok(vec![one_by_one(order, &lowered.bodies, gpu)?]);
    }
    lowering.arrange(lowered)
}

/// The clock of the GPUs that are used, with a barrier where ranks start at one; and for each of them an event that flags are
/// lowered, and one that the pass has ended.
fn timing(plan: &Plan, members: &Members) -> Result<(Clock, [Vec<Event>; 2]), CudaError> {
    let gpus: Vec<&dyn Gpu> = members.all.iter().map(|m| m.gpu.as_ref()).collect();
    let used = if members.are_virtual { &gpus[..1] } else { &gpus[..] };
    let mut clock = Clock::new(used)?;
    if members.by_barrier {
        clock.barrier = Some(barrier(plan, &members.all)?);
    }
    let events = || used.iter().map(|gpu| gpu.event()).collect::<Result<Vec<_>, GpuError>>();
    Ok((clock, [events()?, events()?]))
}

/// What a user must be told besides the choice of the mode.
fn remarks(plan: &Plan, is_deep: bool) -> Vec<String> {
    let deep = "the program is too long to be posted ahead: times include the host's posting";
    let carried = tensors::carried_bytes(plan);
    let along = format!("{} go along with messages beyond what the plan counts", Bytes(carried));
    [is_deep.then(|| deep.to_owned()), (carried > 0).then_some(along)].into_iter().flatten().collect()
}

fn allocate(plan: &Plan, member: &Member, folds: &Folds, by_segments: bool) -> Result<Memory, CudaError> {
    let program = &plan.programs[member.rank as usize];
    let unused = folds.unused_states(program, by_segments);
    Memory::new(program, &plan.shape, &unused, |i, buffer, bytes| {
        let what = format!("buffer {i} ({:?})", buffer.tensor);
        member.gpu.allocate(bytes).map_err(|error| memory_error(member, what, bytes, error))
    })
}

/// What each member allocated: its buffers, and room for what is packed.
fn peak_bytes(plan: &Plan, memories: &[Memory], packed: &[usize]) -> Vec<Bytes> {
    let of_member = |(memory, packed): (&Memory, &usize)| {
        let bytes: usize = memory.slots().map(|(_, slot)| slot.bytes(&plan.shape)).sum();
        Bytes((bytes + packed) as u64)
    };
    memories.iter().zip(packed).map(of_member).collect()
}

/// An error of an allocation, with what it was for.
fn memory_error(member: &Member, what: String, bytes: usize, error: GpuError) -> CudaError {
    match error {
        GpuError::Driver { source, .. } if source.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            let free = member.gpu.memory().map_or(0, |(free, _)| free);
            CudaError::OutOfMemory {
                gpu: member.gpu.ordinal(),
                rank: member.rank,
                what,
                bytes: Bytes(bytes as u64),
                free: Bytes(free),
            }
        }
        source => CudaError::Gpu { rank: Some(member.rank), source },
    }
}

fn allocate_flags(plan: &Plan, members: &[Member]) -> Result<Flags, CudaError> {
    let bytes = 4 * Flags::count(plan);
    let mut bases: Vec<Address> = vec![0; plan.programs.len()];
    for member in members {
        let error = |error| memory_error(member, "flags".into(), bytes, error);
        bases[member.rank as usize] = member.gpu.allocate(bytes).map_err(error)?;
    }
    Ok(Flags::new(bases, plan.messages.len()))
}

/// The words that each member exchanges with every other rank: one to send, and room for one of each.
fn barrier(plan: &Plan, members: &[Member]) -> Result<Barrier, CudaError> {
    const WORD: usize = 4;
    let (mut words, mut between) = (Vec::new(), Vec::new());
    for member in members {
        let at = member.gpu.allocate(WORD * (1 + plan.programs.len()))?;
        let peers = (0..plan.ranks()).filter(|&peer| peer != member.rank);
        let both = peers.flat_map(|peer| {
            let room = at + (WORD * (1 + peer as usize)) as u64;
            [(true, at), (false, room)].map(|(sends, at)| Parcel { peer, sends, at, bytes: WORD })
        });
        words.push(both.collect());
        between.push(member.gpu.event()?);
    }
    Ok(Barrier { words, between })
}

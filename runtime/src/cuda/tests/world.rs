//! Made-up GPUs that obey the rules of real ones and nothing else: streams in order, events, flags, memory. What the rules
//! leave open is decided by chance, so that a missing wait shows up as wrong numbers: any stream whose head may go on can
//! be next, however long another one waits, and copies and launches are seen half done.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use ringlab_kernels::gpu::GpuError;
use ringlab_sim::units::SimTime;

use super::exchange::{Heads, Moved};
use super::kernels::Job;
use crate::cuda::command::{Address, Command, Event, Kernel, Launch, Strip};
use crate::cuda::device::{Fault, Gpu, RAISED, RELEASED};
use crate::cuda::passes::STREAMS;

/// What goes wrong, and who is slow.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trouble {
    /// A stream of a GPU that only goes on while no other one can.
    pub lazy: Option<(usize, usize)>,
    /// A GPU's stream that never gets past its n-th command.
    pub stuck: Option<(usize, usize, usize)>,
    /// A GPU's launch that never ends, by the order in which launches were prepared.
    pub hung: Option<(usize, usize)>,
    /// Bytes that a GPU has.
    pub capacity: Option<usize>,
    /// A GPU that is lost after so many commands.
    pub lost: Option<(usize, usize)>,
}

#[derive(Default)]
struct Mark {
    posted: usize,
    reached: usize,
    time: u64,
}

enum Entry {
    Command(Command),
    /// Goes on once the event has been reached so many times.
    Await(Event, usize),
}

#[derive(Default)]
struct State {
    streams: Vec<VecDeque<Entry>>,
    /// Whether a stream's head, a launch, reads the keys that it waits for on the device.
    begun: Vec<bool>,
    /// Whether the first half of a stream's head is done, and how many commands have ended.
    half: Vec<bool>,
    ended: Vec<usize>,
    events: Vec<Mark>,
    jobs: Vec<Job>,
    allocated: usize,
}

/// All GPUs of a made-up machine.
pub struct World {
    memory: Memory,
    gpus: Vec<State>,
    random: u64,
    /// By GPU and stream, how likely it is next.
    weights: Vec<Vec<u64>>,
    now: u64,
    commands: usize,
    trouble: Trouble,
    moved: Moved,
}

/// Allocations by address; those of GPU g start at `(g + 1) << 40`.
#[derive(Default)]
pub struct Memory(BTreeMap<Address, Vec<u8>>);

impl Memory {
    fn find(&self, at: Address, len: usize) -> (Address, usize) {
        let found = self.0.range(..=at).next_back();
        match found {
            Some((&base, data)) if (at - base) as usize + len <= data.len() => (base, (at - base) as usize),
            _ => panic!("{len} bytes at {at:#x} are in no allocation"),
        }
    }

    pub fn bytes(&self, at: Address, len: usize) -> &[u8] {
        let (base, offset) = self.find(at, len);
        &self.0[&base][offset..offset + len]
    }

    pub fn bytes_mut(&mut self, at: Address, len: usize) -> &mut [u8] {
        let (base, offset) = self.find(at, len);
        &mut self.0.get_mut(&base).unwrap()[offset..offset + len]
    }

    fn flag(&self, at: Address) -> u32 {
        u32::from_le_bytes(self.bytes(at, 4).try_into().unwrap())
    }
}

pub fn home(at: Address) -> usize {
    (at >> 40) as usize - 1
}

impl World {
    pub fn new(gpus: usize, seed: u64, trouble: Trouble) -> Arc<Mutex<Self>> {
        let state = || State {
            streams: (0..STREAMS).map(|_| VecDeque::new()).collect(),
            begun: vec![false; STREAMS],
            half: vec![false; STREAMS],
            ended: vec![0; STREAMS],
            ..State::default()
        };
        let mut world = Self {
            memory: Memory::default(),
            gpus: (0..gpus).map(|_| state()).collect(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            weights: vec![vec![1; STREAMS]; gpus],
            now: 0,
            commands: 0,
            trouble,
            moved: Moved::default(),
        };
        for gpu in 0..gpus {
            for stream in 0..STREAMS {
                world.weights[gpu][stream] = 1 << (2 * world.chance(6));
            }
        }
        Arc::new(Mutex::new(world))
    }

    /// A number below `n`: xorshift (Marsaglia, 2003).
    fn chance(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % n
    }

    fn may_go_on(&self, gpu: usize, stream: usize) -> bool {
        let state = &self.gpus[gpu];
        if self.trouble.stuck.is_some_and(|(g, s, n)| (g, s) == (gpu, stream) && state.ended[stream] >= n) {
            return false;
        }
        let raised = |at: Address| self.memory.flag(at).wrapping_sub(RAISED).cast_signed() >= 0;
        match state.streams[stream].front() {
            None => false,
            Some(Entry::Await(event, times)) => state.events[event.0].reached >= *times,
            Some(Entry::Command(Command::AwaitFlag(at))) => raised(*at),
            Some(Entry::Command(Command::Launch(launch))) => {
                let all_raised = || state.jobs[launch.0].flags().all(|f| raised(f.ptr) && f.value == RAISED);
                self.trouble.hung != Some((gpu, launch.0)) && (!state.begun[stream] || all_raised())
            }
            Some(Entry::Command(Command::Exchange(_))) => {
                self.moved.may_go_on(gpu, stream, &heads(&self.gpus, stream))
            }
            Some(Entry::Command(_)) => true,
        }
    }

    /// Lets the group at the head of a stream move; whether it is still there.
    fn exchange(&mut self, gpu: usize, stream: usize) -> bool {
        if !matches!(self.gpus[gpu].streams[stream].front(), Some(Entry::Command(Command::Exchange(_)))) {
            return false;
        }
        let heads = heads(&self.gpus, stream);
        if self.moved.ended(gpu, stream, &heads) {
            self.moved.forget(gpu, stream);
            return false;
        }
        self.moved.go_on(gpu, stream, &heads, &mut self.memory);
        true
    }

    /// Lets a launch start, which reads at once what it has no flag to wait for; false where it has started.
    fn begin(&mut self, gpu: usize, stream: usize) -> bool {
        let state = &mut self.gpus[gpu];
        let Some(&Entry::Command(Command::Launch(launch))) = state.streams[stream].front() else {
            return false;
        };
        if state.begun[stream] {
            return false;
        }
        state.begun[stream] = true;
        state.jobs[launch.0].begin(&mut self.memory, gpu);
        true
    }

    /// One stream goes on by half a command; false if none can.
    fn step(&mut self) -> bool {
        let all = (0..self.gpus.len()).flat_map(|g| (0..STREAMS).map(move |s| (g, s)));
        let mut ready: Vec<(usize, usize)> = all.filter(|&(g, s)| self.may_go_on(g, s)).collect();
        if ready.len() > 1 {
            ready.retain(|&at| Some(at) != self.trouble.lazy);
        }
        let total: u64 = ready.iter().map(|&(g, s)| self.weights[g][s]).sum();
        if total == 0 {
            return false;
        }
        let mut pick = self.chance(total);
        let chosen = ready.iter().find(|&&(g, s)| {
            let weight = self.weights[g][s];
            let hit = pick < weight;
            pick = pick.saturating_sub(weight);
            hit
        });
        let &(gpu, stream) = chosen.expect("the weights add up");
        self.now += 1;
        self.go_on(gpu, stream);
        true
    }

    fn go_on(&mut self, gpu: usize, stream: usize) {
        if self.exchange(gpu, stream) || self.begin(gpu, stream) {
            return;
        }
        let first = !self.gpus[gpu].half[stream];
        let in_halves = matches!(
            self.gpus[gpu].streams[stream].front(),
            Some(Entry::Command(Command::Copy(_) | Command::Launch(_)))
        );
        if in_halves && first {
            self.gpus[gpu].half[stream] = true;
        } else {
            self.gpus[gpu].half[stream] = false;
            self.gpus[gpu].begun[stream] = false;
            self.gpus[gpu].ended[stream] += 1;
            self.commands += 1;
        }
        let entry = if in_halves && first {
            match self.gpus[gpu].streams[stream].front() {
                Some(Entry::Command(command)) => Entry::Command(command.clone()),
                _ => return,
            }
        } else {
            self.gpus[gpu].streams[stream].pop_front().expect("there is a head")
        };
        let Entry::Command(command) = entry else { return };
        match command {
            Command::Record(event) => {
                let mark = &mut self.gpus[gpu].events[event.0];
                mark.reached += 1;
                mark.time = self.now;
            }
            Command::RaiseFlag(at) => self.memory.bytes_mut(at, 4).copy_from_slice(&RAISED.to_le_bytes()),
            Command::Copy(strip) => self.copy(strip, first),
            Command::Fill { at, bytes, byte } => {
                assert_eq!(home(at), gpu, "a fill on another GPU");
                self.memory.bytes_mut(at, bytes).fill(byte);
            }
            Command::Launch(launch) => self.gpus[gpu].jobs[launch.0].run(&mut self.memory, gpu, first),
            Command::AwaitFlag(_) | Command::Await(_) | Command::Exchange(_) => {}
        }
    }

    fn copy(&mut self, strip: Strip, first: bool) {
        let middle = strip.rows / 2;
        let halves = if strip.rows == 1 {
            let half = strip.row_bytes / 2;
            if first { (0..1, 0..half) } else { (0..1, half..strip.row_bytes) }
        } else {
            (if first { 0..middle } else { middle..strip.rows }, 0..strip.row_bytes)
        };
        for row in halves.0 {
            let at = |base: Address, pitch: usize| base + (row * pitch + halves.1.start) as u64;
            let data = self.memory.bytes(at(strip.from, strip.from_pitch), halves.1.len()).to_vec();
            self.memory.bytes_mut(at(strip.to, strip.to_pitch), data.len()).copy_from_slice(&data);
        }
    }
}

/// The groups at the heads of the GPUs' streams of this number.
fn heads(gpus: &[State], stream: usize) -> Heads<'_> {
    let mut heads = Heads::new();
    for (gpu, state) in gpus.iter().enumerate() {
        if let Some(Entry::Command(Command::Exchange(parcels))) = state.streams[stream].front() {
            heads.insert(gpu, parcels);
        }
    }
    heads
}

/// One GPU of a made-up machine.
pub struct FakeGpu {
    pub world: Arc<Mutex<World>>,
    pub index: usize,
}

fn driver_error(code: CUresult) -> GpuError {
    GpuError::Driver { doing: "do as it is told", source: DriverError(code) }
}

impl Gpu for FakeGpu {
    fn allocate(&self, bytes: usize) -> Result<Address, GpuError> {
        let mut world = self.world.lock().unwrap();
        let capacity = world.trouble.capacity.unwrap_or(usize::MAX);
        let state = &mut world.gpus[self.index];
        if state.allocated + bytes > capacity {
            return Err(driver_error(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        }
        let at = ((self.index as u64 + 1) << 40) + state.allocated as u64;
        // A gap, so that an access past the end is in no allocation.
        state.allocated += bytes.next_multiple_of(256) + 4096;
        world.memory.0.insert(at, vec![0xff; bytes]);
        Ok(at)
    }

    fn memory(&self) -> Result<(u64, u64), GpuError> {
        let world = self.world.lock().unwrap();
        let capacity = world.trouble.capacity.unwrap_or(1 << 40);
        Ok(((capacity - world.gpus[self.index].allocated.min(capacity)) as u64, capacity as u64))
    }

    fn upload(&self, to: Address, data: &[u8]) -> Result<(), GpuError> {
        assert_eq!(home(to), self.index);
        self.world.lock().unwrap().memory.bytes_mut(to, data.len()).copy_from_slice(data);
        Ok(())
    }

    fn download(&self, from: Address, data: &mut [u8]) -> Result<(), GpuError> {
        data.copy_from_slice(self.world.lock().unwrap().memory.bytes(from, data.len()));
        Ok(())
    }

    fn prepare(&self, kernel: &Kernel<'_>) -> Result<Launch, GpuError> {
        let job = Job::new(kernel)?;
        let jobs = &mut self.world.lock().unwrap().gpus[self.index].jobs;
        jobs.push(job);
        Ok(Launch(jobs.len() - 1))
    }

    fn event(&self) -> Result<Event, GpuError> {
        let events = &mut self.world.lock().unwrap().gpus[self.index].events;
        events.push(Mark::default());
        Ok(Event(events.len() - 1))
    }

    fn post(&self, stream: usize, command: &Command) -> Result<(), Fault> {
        let state = &mut self.world.lock().unwrap().gpus[self.index];
        let entry = match *command {
            Command::Await(event) => Entry::Await(event, state.events[event.0].posted),
            Command::Record(event) => {
                state.events[event.0].posted += 1;
                Entry::Command(command.clone())
            }
            _ => Entry::Command(command.clone()),
        };
        state.streams[stream].push_back(entry);
        Ok(())
    }

    fn is_done(&self, event: Event) -> Result<bool, GpuError> {
        let mut world = self.world.lock().unwrap();
        loop {
            let lost =
                world.trouble.lost.is_some_and(|(gpu, after)| gpu == self.index && world.commands >= after);
            if lost {
                return Err(driver_error(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS));
            }
            let mark = &world.gpus[self.index].events[event.0];
            if mark.reached >= mark.posted {
                return Ok(true);
            }
            if !world.step() {
                return Ok(false);
            }
        }
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<SimTime, GpuError> {
        let events = &self.world.lock().unwrap().gpus[self.index].events;
        assert!(events[from.0].reached > 0 && events[to.0].reached > 0, "an event that was never reached");
        Ok(SimTime(events[to.0].time.saturating_sub(events[from.0].time) * 1000))
    }

    fn release(&self, flags: Address, count: usize) -> Result<(), GpuError> {
        let mut world = self.world.lock().unwrap();
        let data: Vec<u8> = RELEASED.to_le_bytes().repeat(count);
        world.memory.bytes_mut(flags, data.len()).copy_from_slice(&data);
        Ok(())
    }

    fn check(&self) -> Result<(), GpuError> {
        Ok(())
    }

    fn ordinal(&self) -> usize {
        self.index
    }

    fn name(&self) -> Result<String, GpuError> {
        Ok(format!("made-up GPU {}", self.index))
    }

    fn driver(&self) -> Result<String, GpuError> {
        Ok("0.0".into())
    }
}

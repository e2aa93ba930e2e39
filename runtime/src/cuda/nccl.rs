//! NCCL: one communicator a lane, never blocking the host for longer than it is told to. The calls return at once and are
//! asked until they have ended; what does not end in time is aborted.

use std::mem::size_of;
use std::ptr;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use cudarc::nccl::{result, sys};
use ringlab_sim::plan::Rank;

use super::command::Parcel;
use super::options::Nccl;

/// What NCCL answers where it fails: what was attempted, and its code.
pub(super) type NcclError = (&'static str, String);

/// The communicators of one rank, by stream.
pub(super) struct Comms {
    by_stream: Mutex<Vec<Option<Comm>>>,
    limit: Duration,
}

/// One communicator; aborted when it is dropped.
struct Comm(sys::ncclComm_t);

#[expect(
    unsafe_code,
    reason = "NCCL allows any thread to use a communicator, one at a time: the mutex around it"
)]
unsafe impl Send for Comm {}

impl Drop for Comm {
    fn drop(&mut self) {
        if self.0.is_null() {
            return;
        }
        #[expect(unsafe_code, reason = "the communicator is alive and dropped once")]
        // A communicator that cannot be aborted leaks; nothing depends on it any more.
        let _ = unsafe { result::comm_abort(self.0) };
    }
}

/// Whether there is an NCCL to load.
pub(super) fn is_present() -> bool {
    #[expect(unsafe_code, reason = "loads a shared library by name, whose initialisers are NVIDIA's")]
    unsafe {
        sys::is_culib_present()
    }
}

/// Bytes by which communicators of several processes find each other.
pub(super) fn unique_id() -> Result<[u8; 128], NcclError> {
    let id = result::get_uniqueid().map_err(|e| ("make an id", format!("{:?}", e.0)))?;
    Ok(id.internal.map(|c| c.to_ne_bytes()[0]))
}

fn failed<T>(doing: &'static str, answer: Result<T, result::NcclError>) -> Result<T, NcclError> {
    answer.map_err(|error| (doing, format!("{:?}", error.0)))
}

/// Time for communicators to end when they are aborted.
const ABORT: Duration = Duration::from_secs(2);

/// NCCL's value of an option that is left to it.
const UNDEFINED: i32 = i32::MIN;

fn config(options: &Nccl) -> sys::ncclConfig_t {
    let ctas = options.max_ctas.map_or(UNDEFINED, |n| i32::try_from(n).unwrap_or(i32::MAX));
    sys::ncclConfig_t {
        size: size_of::<sys::ncclConfig_t>(),
        magic: 0xcafe_beef,
        version: 22800,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: ctas,
        netName: ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
    }
}

impl Comm {
    /// Waits until what was asked of the communicator has ended.
    fn settle(&self, doing: &'static str, limit: Duration) -> Result<(), NcclError> {
        let start = Instant::now();
        loop {
            let mut state = sys::ncclResult_t::ncclSuccess;
            #[expect(unsafe_code, reason = "the communicator is alive; writes one number")]
            let answer = unsafe { sys::ncclCommGetAsyncError(self.0, &raw mut state) }.result();
            failed(doing, answer)?;
            match failed(doing, state.result())? {
                result::NcclStatus::InProgress if start.elapsed() > limit => {
                    return Err((doing, format!("no answer within {} s", limit.as_secs_f64())));
                }
                result::NcclStatus::InProgress => thread::sleep(Duration::from_micros(20)),
                _ => return Ok(()),
            }
        }
    }

    fn first(
        id: &[u8; 128],
        rank: Rank,
        ranks: u32,
        options: &Nccl,
        limit: Duration,
    ) -> Result<Self, NcclError> {
        const DOING: &str = "join the group";
        let mut config = config(options);
        let id = sys::ncclUniqueId { internal: id.map(|b| std::ffi::c_char::from_ne_bytes([b])) };
        let (rank, ranks) = (rank.cast_signed(), ranks.cast_signed());
        let slot = Slot::new();
        #[expect(
            unsafe_code,
            reason = "the GPU's context is current; NCCL copies the config, the slot stays"
        )]
        let answer = unsafe { result::comm_init_rank_config(slot.0, ranks, id, rank, &raw mut config) };
        failed(DOING, answer)?;
        let comm = slot.take();
        comm.settle(DOING, limit)?;
        Ok(comm)
    }

    /// Another communicator of the same ranks.
    fn another(&self, rank: Rank, options: &Nccl, limit: Duration) -> Result<Self, NcclError> {
        const DOING: &str = "open another communicator";
        let mut config = config(options);
        let slot = Slot::new();
        #[expect(unsafe_code, reason = "the communicator is alive; NCCL copies the config, the slot stays")]
        let answer =
            unsafe { sys::ncclCommSplit(self.0, 0, rank.cast_signed(), slot.0, &raw mut config) }.result();
        failed(DOING, answer)?;
        self.settle(DOING, limit)?;
        let comm = slot.take();
        comm.settle(DOING, limit)?;
        Ok(comm)
    }
}

/// Where NCCL writes a communicator's address, maybe long after a call that did not wait for it: never freed.
struct Slot(*mut sys::ncclComm_t);

impl Slot {
    fn new() -> Self {
        Self(Box::leak(Box::new(ptr::null_mut())))
    }

    fn take(self) -> Comm {
        #[expect(unsafe_code, reason = "the box was leaked, and NCCL has said that it is done with it")]
        Comm(unsafe { *self.0 })
    }
}

impl Comms {
    /// Joins the group of `ranks` ranks as `rank`, with a communicator for each of `streams`. All ranks must do so at the
    /// same time, with the GPU's context current.
    pub fn join(
        id: &[u8; 128],
        (rank, ranks): (Rank, u32),
        streams: &[usize],
        options: &Nccl,
        limit: Duration,
    ) -> Result<Self, NcclError> {
        let mut by_stream: Vec<Option<Comm>> = Vec::new();
        by_stream.resize_with(streams.iter().max().map_or(0, |s| s + 1), || None);
        let mut first: Option<usize> = None;
        for &stream in streams {
            let comm = match first.and_then(|f| by_stream[f].as_ref()) {
                None => Comm::first(id, rank, ranks, options, limit)?,
                Some(comm) => comm.another(rank, options, limit)?,
            };
            by_stream[stream] = Some(comm);
            first = first.or(Some(stream));
        }
        Ok(Self { by_stream: Mutex::new(by_stream), limit })
    }

    /// Puts a group of sends and receives on a stream.
    pub fn exchange(&self, stream: usize, parcels: &[Parcel], on: &CudaStream) -> Result<(), NcclError> {
        const DOING: &str = "post a group of sends and receives";
        let missing = || (DOING, "no communicator of this lane".to_owned());
        let comms = self.by_stream.lock().map_err(|_| missing())?;
        let comm = comms.get(stream).and_then(Option::as_ref).ok_or_else(missing)?;
        failed(DOING, result::group_start())?;
        let mut posted = Ok(());
        for parcel in parcels {
            posted = posted.and_then(|()| failed(DOING, comm.post(parcel, on)));
        }
        let ended = failed(DOING, result::group_end());
        posted?;
        ended?;
        comm.settle(DOING, self.limit)
    }

    /// Ends all transfers, whatever they wait for. All at once: NCCL ends a communicator only after what its streams wait
    /// for, which may be another one's transfer. One that does not end in time is left to its thread.
    pub fn abort(&self) {
        let Ok(mut comms) = self.by_stream.lock() else { return };
        let ending: Vec<_> = comms.drain(..).flatten().map(|comm| thread::spawn(|| drop(comm))).collect();
        let start = Instant::now();
        while start.elapsed() < ABORT && !ending.iter().all(thread::JoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(1));
        }
        let ended = ending.into_iter().filter(thread::JoinHandle::is_finished);
        // What it says of a panic has been printed.
        ended.for_each(|thread| drop(thread.join()));
    }
}

impl Comm {
    fn post(&self, parcel: &Parcel, on: &CudaStream) -> Result<(), result::NcclError> {
        let Parcel { peer, sends, at, bytes } = *parcel;
        // A stream of cudarc's driver is one of NCCL's.
        let (stream, peer) = (on.cu_stream().cast(), peer.cast_signed());
        let (data, kind) = (at as usize, sys::ncclDataType_t::ncclUint8);
        if sends {
            #[expect(unsafe_code, reason = "the bytes lie in an allocation that outlives the stream")]
            unsafe { result::send(ptr::with_exposed_provenance(data), bytes, kind, peer, self.0, stream) }?;
        } else {
            #[expect(unsafe_code, reason = "the bytes lie in an allocation that outlives the stream")]
            unsafe {
                result::recv(ptr::with_exposed_provenance_mut(data), bytes, kind, peer, self.0, stream)
            }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_reaches_the_communicator_and_nothing_else_is_set() {
        let limited = config(&Nccl { max_ctas: Some(8), ..Nccl::default() });
        assert_eq!((limited.maxCTAs, limited.minCTAs, limited.cgaClusterSize), (8, UNDEFINED, UNDEFINED));
        assert_eq!(config(&Nccl::default()), sys::ncclConfig_t { maxCTAs: UNDEFINED, ..limited });
    }
}

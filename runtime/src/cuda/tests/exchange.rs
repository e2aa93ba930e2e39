//! What NCCL does with groups: a send and the receive that matches it move once both are at the heads of their streams, in
//! order between any two ranks; a group ends with the last of its parts.

use std::collections::BTreeMap;

use super::world::Memory;
use crate::cuda::command::Parcel;

/// Parts of the groups at the heads of streams that have moved, by GPU and stream.
#[derive(Default)]
pub struct Moved(BTreeMap<(usize, usize), Vec<bool>>);

/// Groups at the heads of streams of one number, by GPU.
pub type Heads<'a> = BTreeMap<usize, &'a [Parcel]>;

impl Moved {
    fn first(&self, at: (usize, usize), parcels: &[Parcel], peer: usize, sends: bool) -> Option<usize> {
        let done = |i: usize| self.0.get(&at).is_some_and(|moved| moved[i]);
        (0..parcels.len())
            .find(|&i| parcels[i].peer as usize == peer && parcels[i].sends == sends && !done(i))
    }

    /// A send and a receive of the group of `gpu` that can move now.
    fn pair(&self, gpu: usize, stream: usize, heads: &Heads<'_>) -> Option<[(usize, usize); 2]> {
        let own = heads.get(&gpu)?;
        heads.iter().filter(|&(&peer, _)| peer != gpu).find_map(|(&peer, others)| {
            [true, false].into_iter().find_map(|sends| {
                let here = (gpu, self.first((gpu, stream), own, peer, sends)?);
                let there = (peer, self.first((peer, stream), others, gpu, !sends)?);
                Some(if sends { [here, there] } else { [there, here] })
            })
        })
    }

    /// Whether the group of `gpu` has ended.
    pub fn ended(&self, gpu: usize, stream: usize, heads: &Heads<'_>) -> bool {
        let all = heads.get(&gpu).map_or(0, |parcels| parcels.len());
        all == 0 || self.0.get(&(gpu, stream)).is_some_and(|moved| moved.iter().all(|&m| m))
    }

    pub fn may_go_on(&self, gpu: usize, stream: usize, heads: &Heads<'_>) -> bool {
        self.ended(gpu, stream, heads) || self.pair(gpu, stream, heads).is_some()
    }

    /// Moves one pair; the group stays until it has ended.
    pub fn go_on(&mut self, gpu: usize, stream: usize, heads: &Heads<'_>, memory: &mut Memory) {
        let Some([(from, send), (to, receive)]) = self.pair(gpu, stream, heads) else { return };
        let (send_part, receive_part) = (heads[&from][send], heads[&to][receive]);
        assert_eq!(send_part.bytes, receive_part.bytes, "a send and a receive of different sizes");
        let data = memory.bytes(send_part.at, send_part.bytes).to_vec();
        memory.bytes_mut(receive_part.at, data.len()).copy_from_slice(&data);
        for (gpu, part) in [(from, send), (to, receive)] {
            let moved = self.0.entry((gpu, stream)).or_insert_with(|| vec![false; heads[&gpu].len()]);
            moved[part] = true;
        }
    }

    /// The stream has gone past its group.
    pub fn forget(&mut self, gpu: usize, stream: usize) {
        self.0.remove(&(gpu, stream));
    }
}

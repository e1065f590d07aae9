//! Shards move to where they are to be: to servers that have come, and away from those that are to leave.
//!
//! Which move follows from the map ([`bivouac_layout::Map::relocations`]), and how far each is stands in it. So a controller
//! that is elected in the middle goes on where the one before it was. A batch of moves begins when the one before it is
//! over: so there are few maps, and the pauses of programs that want something of the shards of one batch are short.

use super::{Shared, lock};
use bivouac_layout::{Map, MapChange, MoveStage, Relocation};
use std::time::{Duration, Instant};

/// So many shards move at once.
const BATCH: usize = 256;
/// Time between two batches, and between two looks while nothing can be done.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest sleep when nothing is to be done.
const REST: Duration = Duration::from_secs(60);

impl Shared {
    /// Has shards move until the controller stops.
    pub(super) fn keep_balanced(&self) {
        let mut pause = PAUSE;
        let mut known = self.newest().epoch;
        while let Some(map) = self.wait(Instant::now() + pause, known) {
            known = map.epoch;
            pause = if map.balancing { PAUSE } else { REST };
            if !map.balancing || is_moving(&map) {
                continue;
            }
            let moves = next_batch(&map);
            if !moves.is_empty() {
                self.begin_moves(&map, moves);
                known = self.newest().epoch;
            }
        }
    }

    fn begin_moves(&self, map: &Map, moves: Vec<Relocation>) {
        let mut log = lock(&self.log);
        if log.map().epoch != map.epoch {
            return;
        }
        tracing::info!(shards = moves.len(), "shards move to other servers");
        self.propose(&mut log, MapChange::MoveShards { moves });
    }
}

/// Whether moves are under way that are going to end. (One that waits for a server that is down keeps no others from
/// beginning.)
fn is_moving(map: &Map) -> bool {
    map.moving.iter().any(|entry| match entry.stage {
        MoveStage::CatchingUp => true,
        MoveStage::HandingOver => {
            map.is_up(entry.from) && map.answers_for(entry.shard).is_some_and(|server| map.is_up(server))
        }
    })
}

fn next_batch(map: &Map) -> Vec<Relocation> {
    let can = |relocation: &Relocation| map.is_up(relocation.from) && map.is_up(relocation.to);
    map.relocations().into_iter().filter(can).take(BATCH).collect()
}

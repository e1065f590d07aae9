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
/// Time between two tries of what most voters have not confirmed.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest sleep while nothing can be done before there is another map.
const REST: Duration = Duration::from_secs(60);

impl Shared {
    /// Has shards move until the controller stops.
    pub(super) fn keep_balanced(&self) {
        let mut map = self.newest();
        loop {
            let has_time = map.balancing && !is_moving(&map);
            let moves = if has_time { next_batch(&map) } else { Vec::new() };
            let pause = if moves.is_empty() { REST } else { PAUSE };
            if !moves.is_empty() {
                self.begin_moves(&map, moves);
            }
            match self.wait(Instant::now() + pause, map.epoch) {
                Some(newer) => map = newer,
                None => return,
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

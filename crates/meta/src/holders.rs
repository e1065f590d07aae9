//! What all servers of a file are asked for.
//!
//! Where each block has one copy, every server has to answer. With more, one that dies meanwhile is left out as soon as
//! the map says so: it will catch up. One that has come is asked, too. The last one that has something is waited for while
//! it is started again. And one whose storage fails is not relied on any more, where others have what it holds: then the
//! map says that it is behind, and its failure does not matter.

use crate::outside::Standing;
use crate::store::Core;
use bivouac_layout::{FileLayout, Group, Map, ServerId, ServerState};
use bivouac_proto::Errno;
use bivouac_proto::data::{DataReply, DataRequest};
use std::time::{Duration, Instant};

/// How long it takes at most until the map says of a copy that it is not relied on.
const HEARD: Duration = Duration::from_secs(5);
/// Time between two looks at the map meanwhile.
const LOOK: Duration = Duration::from_millis(20);

impl Core {
    /// Asks each server of a file that `requests` names by the newest map; their answers, each by the map of its moment.
    /// Changes are asked for with a `standing`.
    pub(crate) fn ask_holders(
        &self,
        standing: Option<Standing>,
        layout: &FileLayout,
        requests: impl Fn(&Map) -> Vec<(ServerId, DataRequest)>,
    ) -> Result<Vec<(ServerId, DataReply)>, Errno> {
        let mut answered: Vec<(ServerId, DataReply)> = Vec::new();
        let mut until = None;
        loop {
            let map = self.outside.map();
            let mut left = requests(&map);
            left.retain(|(server, _)| answered.iter().all(|(other, _)| other != server));
            if left.is_empty() {
                return Ok(answered);
            }
            // One that joins answers other servers.
            let is_down =
                |server: &ServerId| map.server(*server).is_some_and(|s| s.state == ServerState::Down);
            let down: Vec<ServerId> = left.iter().map(|(server, _)| *server).filter(is_down).collect();
            if self.outside.wait_until_up(&map, &down) {
                continue;
            }
            let answers = self.outside.data_each(standing, layout.version, &left);
            // With copies, a server that has died is down at once; one that alone has something is waited for then.
            let is_newest = map.copies == 1 || self.outside.map().epoch == map.epoch;
            let mut waits = false;
            for ((server, _), answer) in left.iter().zip(answers) {
                match answer {
                    Ok(DataReply::NotTruncated { excused })
                        if !(excused && is_behind(layout, &map, *server)) =>
                    {
                        self.distrust(layout, &map, *server).map_err(|()| Errno::IO)?;
                        waits = true;
                    }
                    Ok(reply) => answered.push((*server, reply)),
                    Err(errno) if is_newest => return Err(errno),
                    Err(_) => {}
                }
            }
            if is_newest && !waits {
                return Ok(answered);
            }
            if waits {
                let until = *until.get_or_insert_with(|| Instant::now() + HEARD);
                while self.outside.map().epoch == map.epoch {
                    if Instant::now() >= until {
                        return Err(Errno::IO);
                    }
                    std::thread::sleep(LOOK);
                }
            }
        }
    }

    /// A server cannot do its part. Where others have everything that it has of the file, or should have, it is not relied
    /// on any more; an error where they do not.
    fn distrust(&self, layout: &FileLayout, map: &Map, server: ServerId) -> Result<(), ()> {
        let holds = |group: &Group| map.holders(*group).all().contains(&server);
        let groups: Vec<Group> = layout.groups(map, u64::MAX).filter(holds).collect();
        let has_others = |group: &Group| map.serving(*group).any(|holder| holder != server);
        if groups.is_empty() || !groups.iter().all(has_others) {
            return Err(());
        }
        groups.into_iter().for_each(|group| self.outside.distrust(group, server));
        Ok(())
    }
}

/// Whether a server is in step in nothing of a file.
pub(crate) fn is_behind(layout: &FileLayout, map: &Map, server: ServerId) -> bool {
    let in_step = |group: Group| map.holders(group).in_step().any(|holder| holder == server);
    !layout.groups(map, u64::MAX).any(in_step)
}

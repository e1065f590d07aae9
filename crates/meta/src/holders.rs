//! What all servers of a file are asked for.
//!
//! Where each block has one copy, every server has to answer. With more, one that dies meanwhile is left out as soon as
//! the map says so: it will catch up. One that has come is asked, too.

use crate::store::{Core, Outside};
use bivouac_layout::{FileLayout, Map, ServerId};
use bivouac_proto::Errno;
use bivouac_proto::data::{DataReply, DataRequest};

impl<O: Outside> Core<O> {
    /// Asks each server of a file that `requests` names by the newest map; their answers.
    pub(crate) fn ask_holders(
        &self,
        layout: &FileLayout,
        requests: impl Fn(&Map) -> Vec<(ServerId, DataRequest)>,
    ) -> Result<Vec<(ServerId, DataReply)>, Errno> {
        let mut answered: Vec<(ServerId, DataReply)> = Vec::new();
        loop {
            let map = self.outside.map();
            let mut left = requests(&map);
            left.retain(|(server, _)| answered.iter().all(|(other, _)| other != server));
            if left.is_empty() {
                return Ok(answered);
            }
            let answers = self.outside.data_each(&left);
            let is_newest = layout.copies(&map) == 1 || self.outside.map().epoch == map.epoch;
            for ((server, _), answer) in left.iter().zip(answers) {
                match answer {
                    Ok(reply) => answered.push((*server, reply)),
                    Err(errno) if is_newest => return Err(errno),
                    Err(_) => {}
                }
            }
            if is_newest {
                return Ok(answered);
            }
        }
    }
}

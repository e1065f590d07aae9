//! Tells other servers where the files are that programs have open through this I/O node, so that whoever takes over finds them if it
//! dies.
//!
//! Each I/O node tells the same few servers, its *guardians*, as long as these are up; others in their place hear of all files. What
//! was opened in the last milliseconds before it died, nobody knows.
//!
//! The thread that does this looks around once a second, and has the I/O node give back what it keeps for nobody any more then.

use crate::links::Links;
use bivouac_forward::IoNode;
use bivouac_layout::map::ServerState;
use bivouac_layout::{Ino, Map, ServerId, ShardId};
use bivouac_proto::meta::{ENTRUST_MAX, Entrusted, MetaRequest};
use bivouac_proto::{Reply, Request};
use bivouac_transport::engine::To;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Guardians of an I/O node. With two, one of them may die together with it.
const GUARDIANS: usize = 2;
/// What is opened in this time goes out together.
const GATHER: Duration = Duration::from_millis(5);
/// How often it is looked whether the guardians are the same, where nothing is opened.
const LOOK: Duration = Duration::from_secs(1);

/// Tells them as long as there is the I/O node.
pub(super) fn start(node: &Arc<IoNode>, links: &Arc<Links>, me: ServerId) {
    let (outbox, node, links) = (node.outbox().clone(), Arc::downgrade(node), links.clone());
    let tell = move || {
        let (mut told, mut tidied) = (Vec::new(), Instant::now());
        while outbox.wait(LOOK).is_some() {
            std::thread::sleep(GATHER);
            if tidied.elapsed() >= LOOK {
                node.upgrade().inspect(|node| node.tidy());
                tidied = Instant::now();
            }
            let guardians = guardians(&links.map(), me);
            if guardians != told
                && let Some(node) = node.upgrade()
            {
                node.tell_all();
            }
            let mut files: Vec<Entrusted> = outbox.take().into_iter().map(entrusted).collect();
            let mut have_heard = guardians.clone();
            while !files.is_empty() {
                let rest = files.split_off(files.len().min(ENTRUST_MAX));
                let request = Request::Meta(MetaRequest::Entrust { files });
                have_heard.retain(|guardian| {
                    let to = To::Server(*guardian, ShardId::FORWARDED);
                    matches!(links.ask_once(to, &request), Some(Reply::Done))
                });
                files = rest;
            }
            told = have_heard;
            if told != guardians {
                // It is told everything later, if it is still one by then.
                std::thread::sleep(LOOK);
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("guardians".into()).spawn(tell) {
        tracing::error!(%error, "others cannot be told which files are open here: if this I/O node dies, they are lost to programs");
    }
}

fn entrusted((ino, path): (Ino, PathBuf)) -> Entrusted {
    Entrusted { ino, path: path.into_os_string().into_vec() }
}

/// The servers that an I/O node tells: those that follow it, on other nodes first.
fn guardians(map: &Map, me: ServerId) -> Vec<ServerId> {
    let own_node = map.server(me).map(|server| server.node);
    let mut others: Vec<_> = map
        .servers
        .iter()
        .filter(|server| server.id != me && server.state == ServerState::Up)
        .map(|server| (Some(server.node) == own_node, server.id < me, server.id))
        .collect();
    others.sort_unstable();
    others.into_iter().map(|(_, _, id)| id).take(GUARDIANS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::tests::founding;
    use bivouac_layout::NodeId;

    #[test]
    fn those_that_follow_are_told_and_those_on_other_nodes_first() {
        let addresses = [1, 2, 3, 4, 5].map(|port| format!("127.0.0.1:{port}").parse().expect("an address"));
        let mut map = founding(&addresses).map().expect("a map");
        let place = |map: &mut Map, nodes: [u16; 5]| {
            map.servers.iter_mut().zip(nodes).for_each(|(server, node)| server.node = NodeId(node));
        };
        let of = |map: &Map, me| -> Vec<u16> {
            guardians(map, ServerId(me)).into_iter().map(|ServerId(guardian)| guardian).collect()
        };
        place(&mut map, [0, 1, 2, 3, 4]);
        assert_eq!((of(&map, 1), of(&map, 3), of(&map, 4)), (vec![2, 3], vec![4, 0], vec![0, 1]));
        place(&mut map, [0, 1, 1, 3, 4]);
        assert_eq!((of(&map, 1), of(&map, 2)), (vec![3, 4], vec![3, 4]));
        map.servers[3].state = ServerState::Down;
        map.servers[4].state = ServerState::Joining;
        assert_eq!(of(&map, 1), [0, 2], "one that shares its node is better than none");
        map.servers.truncate(1);
        assert_eq!(of(&map, 0), Vec::<u16>::new());
    }
}

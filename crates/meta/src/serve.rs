//! Which request is which operation.

use crate::outside::Outside;
use crate::store::{Caller, Core};
use bivouac_layout::ServerId;
use bivouac_proto::Reply;
use bivouac_proto::meta::MetaRequest;
use bivouac_proto::peer::{PeerReply, PeerRequest};
use bivouac_proto::status::Failure;

impl Core {
    pub(crate) fn meta(
        &self,
        caller: &Caller,
        request: &MetaRequest<'_>,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Reply, Failure> {
        match *request {
            MetaRequest::Lookup { at } => self.lookup(caller, at),
            MetaRequest::GetAttr { ino } => self.get_attr(ino),
            MetaRequest::SetAttr { ino, set } => self.set_attr(caller, ino, set),
            MetaRequest::Open { at, how, open } => self.open_entry(caller, at, how, open, out),
            MetaRequest::OpenInode { ino, how, open } => self.open_inode(caller, ino, how, open, out),
            MetaRequest::MakeTemporary { dir, how, open } => self.make_temporary(caller, dir, how, open),
            MetaRequest::Release { ino, open, wrote } => self.release(Some(caller), ino, open, wrote),
            MetaRequest::Abandon { ino, open, wrote } => self.abandon(caller.shard, ino, open, wrote),
            MetaRequest::Reopen { ino, open, write } => self.reopen(ino, open, write),
            MetaRequest::Truncate { ino, size } => self.truncate(caller, ino, size),
            MetaRequest::ReadInline { ino, offset, len } => self.read_inline(ino, offset, len, out),
            MetaRequest::WriteInline { ino, offset } => self.write_inline(caller, ino, offset, payload),
            MetaRequest::Spill { ino } => self.spill(caller, ino),
            MetaRequest::Append { ino } => self.append(caller, ino, payload),
            MetaRequest::Mkdir { at, mode } => self.mkdir(caller, at, mode),
            MetaRequest::MakeNode { at, kind, mode, target } => {
                self.make_node(caller, at, kind, mode, target)
            }
            MetaRequest::Link { ino, at } => self.link(caller, ino, at),
            MetaRequest::Unlink { at } => self.unlink(caller, at),
            MetaRequest::Rmdir { at } => self.rmdir(caller, at),
            MetaRequest::Rename { from, to, mode } => self.rename(caller, from, to, mode),
            MetaRequest::ReadDir { dir, split, after, limit, attrs } => {
                self.read_dir(dir, split, after, limit, attrs)
            }
            MetaRequest::Parent { ino } => self.parent(ino),
            MetaRequest::ReadLink { ino } => self.read_link(ino, out),
            MetaRequest::GetXattr { ino, name } => self.get_xattr(caller, ino, name, out),
            MetaRequest::ListXattr { ino } => self.list_xattr(caller, ino, out),
            MetaRequest::SetXattr { ino, name, mode } => self.set_xattr(caller, ino, name, mode, payload),
            MetaRequest::RemoveXattr { ino, name } => self.remove_xattr(caller, ino, name),
            MetaRequest::Lock { ino, owner, range, wait_ms } => self.lock(ino, owner, range, wait_ms),
            MetaRequest::Unlock { ino, owner, start, end } => self.unlock(ino, owner, start, end),
            MetaRequest::TestLock { ino, owner, range } => self.test_lock(ino, owner, range),
            MetaRequest::CancelLock { ino, owner, range } => self.cancel_lock(ino, owner, range),
            MetaRequest::Report { node, start, epoch, ref opens, more } => {
                self.report((node, start, epoch), opens, more)
            }
            MetaRequest::Relock { start, ref locks } => self.relock(start, locks),
            MetaRequest::EndSession { session } => self.end_session(session),
            MetaRequest::Sync { ino } => self.sync(ino),
            MetaRequest::MakeLazy { at, ref file } => self.make_lazy(caller, at, file),
            MetaRequest::Fetch { ino } => self.fetch(ino),
            // Only I/O nodes know paths.
            MetaRequest::Locate { .. } | MetaRequest::Entrust { .. } | MetaRequest::GiveLocks { .. } => {
                Err(bivouac_proto::Errno::OPNOTSUPP.into())
            }
            MetaRequest::Find { ref files } => self.find(caller, files, out),
            MetaRequest::Look { ref inos, limit, attrs } => self.look(caller, inos, limit, attrs),
        }
    }

    pub(crate) fn serve_peer(&self, from: ServerId, request: &PeerRequest<'_>) -> Result<Reply, Failure> {
        match request {
            PeerRequest::Prepare { intent, shard, steps } => self
                .prepare_in(*shard, *intent, steps, false)
                .map(|made| Reply::Peer(PeerReply::Prepared { made })),
            PeerRequest::Commit { intents } => {
                let each = intents.iter().try_for_each(|(intent, shard)| self.commit(*shard, *intent));
                each.map(|()| Reply::Done)
            }
            PeerRequest::Abort { intents } => {
                let each = intents.iter().try_for_each(|(intent, shard)| self.abort(*shard, *intent));
                each.map(|()| Reply::Done)
            }
            PeerRequest::Outcome { intent } => {
                self.outcome(*intent).map(|committed| Reply::Peer(PeerReply::Outcome { committed }))
            }
            PeerRequest::InstallParts { dir, owner, layout, time, parts, entries } => {
                self.install_parts(*dir, (*owner, *layout), *time, parts, entries).map(|()| Reply::Done)
            }
            PeerRequest::StatParts { dir, parts } => self.stat_parts(*dir, parts).map(Reply::Peer),
            PeerRequest::OwnParts { dir, owner, layout, parts } => {
                self.own_parts(*dir, *owner, *layout, parts).map(|()| Reply::Done)
            }
            PeerRequest::NoteMoves { moved } => {
                self.note_moves_here(moved);
                Ok(Reply::Done)
            }
            PeerRequest::DirectoryMoves { intent, take } => {
                self.serve_moves(*intent, *take).map(|()| Reply::Done)
            }
            PeerRequest::Inode { ino } => self
                .inode_here(*ino)
                .map(|(attr, parent)| Reply::Peer(PeerReply::Inode { attr: Box::new(attr), parent })),
            PeerRequest::Files { shard, after } => {
                self.files_with_copies(*shard, *after).map(|files| Reply::Peer(PeerReply::Files(files)))
            }
            PeerRequest::ShardsWithout => Ok(Reply::Peer(PeerReply::Shards(self.shards_without_copies()))),
            PeerRequest::CatchUp => self.catch_up(from).map(|()| Reply::Done),
            PeerRequest::Ship { shipments } => {
                let now = self.outside.now();
                let held = shipments.iter().map(|shipment| self.partitions.receive(shipment, now));
                Ok(Reply::Peer(PeerReply::Held(held.collect::<Result<_, _>>()?)))
            }
            PeerRequest::Image { shard, term, part, last, batches } => {
                let held = self.partitions.receive_image(*shard, *term, (*part, *last), batches)?;
                Ok(Reply::Peer(PeerReply::Held(vec![held])))
            }
            PeerRequest::Positions { shards } => {
                let held = shards.iter().map(|(shard, term)| self.partitions.position(*shard, *term));
                Ok(Reply::Peer(PeerReply::Held(held.collect())))
            }
            PeerRequest::Supply { shard, term, to, from } => {
                let outside: &dyn Outside = &*self.outside;
                self.partitions.supply(outside, *shard, *term, *to, *from).map(|_| Reply::Done)
            }
            PeerRequest::Compare { shards } => Ok(self.compared(shards)?),
            PeerRequest::Entry { dir, split, name } => {
                self.entry_here(*dir, *split, name).map(|(named, owner)| {
                    let named = named.map(|n| (n.ino, n.kind));
                    Reply::Peer(PeerReply::Entry { named, owner: owner.triple() })
                })
            }
        }
    }
}

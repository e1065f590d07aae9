//! Locks, and clients that wait for them.
//!
//! A client that waits makes no other call. Circles are not made: not all kinds of locks find them, so that
//! some would wait for ever.

use super::super::call::{Domain, Hold};
use super::*;

/// A lock that a client waits for.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    node: u64,
    owner: Owner,
    held: Held,
}

impl Reference {
    /// Whether a client waits for a lock.
    pub fn waits(&self, client: usize) -> bool {
        self.waiting.contains_key(&client)
    }

    /// The clients that wait.
    pub fn waiting(&self) -> Vec<usize> {
        self.waiting.keys().copied().collect()
    }

    /// The clients that wait although nothing conflicts any more. Of those that conflict with each other, one
    /// will be first.
    pub fn ready(&self) -> Vec<usize> {
        let free = |w: &Waiting| self.locks.conflicts(w.node, w.owner, w.held).next().is_none();
        self.waiting.iter().filter(|(_, waiting)| free(waiting)).map(|(client, _)| *client).collect()
    }

    /// A client waits no more: it has its lock, or was interrupted.
    pub fn waited(&mut self, client: usize, has_it: bool) {
        let Some(Waiting { node, owner, held }) = self.waiting.remove(&client) else { return };
        if has_it {
            self.locks.set(node, owner, held);
        }
    }

    /// Whether a client that waited for this lock would, by way of others who wait, wait for itself; or would
    /// give another lock up first: when it has done that nobody can tell.
    pub(super) fn is_not_to_wait(&self, client: usize, call: &Call) -> bool {
        let Call::Lock { slot, domain, hold, start, len, .. } = call else { return false };
        let range = (*start, *len);
        let (node, owner, held) = self.wanted(client, *slot, *domain, *hold == Hold::Exclusive, range);
        let waits = self.locks.conflicts(node, owner, held).next().is_some();
        if waits && *domain == Domain::Whole && self.locks.has_any(node, owner) {
            return true;
        }
        let (mut open, mut seen) = (vec![Waiting { node, owner, held }], Vec::new());
        while let Some(Waiting { node, owner, held }) = open.pop() {
            for (other, _) in self.locks.conflicts(node, owner, held) {
                let other = self.client_of(other);
                if other == client {
                    return true;
                }
                if !seen.contains(&other) {
                    seen.push(other);
                    open.extend(self.waiting.get(&other));
                }
            }
        }
        false
    }

    fn client_of(&self, owner: Owner) -> usize {
        match owner {
            Owner::Process(client) => client,
            Owner::Description(number) | Owner::Whole(number) => {
                let has = |slots: &[Option<u64>; SLOTS as usize]| slots.contains(&Some(number));
                self.slots.iter().position(has).expect("locks go with their descriptions")
            }
        }
    }

    fn owner(&self, client: usize, slot: u8, domain: Domain) -> Owner {
        let number = self.slots[client][slot as usize].expect("a slot that is open");
        match domain {
            Domain::Process => Owner::Process(client),
            Domain::Description => Owner::Description(number),
            Domain::Whole => Owner::Whole(number),
        }
    }

    /// Inode, owner and extent of a lock that a call is about.
    pub(super) fn wanted(
        &self,
        client: usize,
        slot: u8,
        domain: Domain,
        exclusive: bool,
        (start, len): (u64, u64),
    ) -> (u64, Owner, Held) {
        let (start, end) = match domain {
            Domain::Whole => (0, u64::MAX),
            // 0 bytes are all to the end of the file.
            _ if len == 0 => (start, u64::MAX),
            _ => (start, start + len),
        };
        (self.description(client, slot).node, self.owner(client, slot, domain), (exclusive, start, end))
    }

    pub(super) fn lock(
        &mut self,
        client: usize,
        slot: u8,
        domain: Domain,
        hold: Hold,
        range: (u64, u64),
        wait: bool,
    ) -> Outcome {
        let exclusive = hold == Hold::Exclusive;
        let (node, owner, held) = self.wanted(client, slot, domain, exclusive, range);
        if hold == Hold::Nothing {
            self.locks.release(node, owner, held.1, held.2);
            return done();
        }
        let access = self.description(client, slot).flags & libc::O_ACCMODE;
        if domain != Domain::Whole && access == if exclusive { libc::O_RDONLY } else { libc::O_WRONLY } {
            return Err(libc::EBADF);
        }
        if self.locks.conflicts(node, owner, held).next().is_some() {
            if domain == Domain::Whole {
                // Converting a lock releases the old one first.
                self.locks.forget(node, owner);
            }
            if wait {
                self.waiting.insert(client, Waiting { node, owner, held });
                return Ok(Expected::Later);
            }
            return Err(libc::EAGAIN);
        }
        self.locks.set(node, owner, held);
        done()
    }
}

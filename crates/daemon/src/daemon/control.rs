//! Requests that concern the daemon itself: from the controller, from other voters, and from administrators.

use super::{Daemon, End};
use crate::controller::ControllerError;
use crate::controller::group::{Group, Start};
use crate::lease::Lease;
use crate::services::Session;
use crate::verify::With;
use bivouac_layout::Epoch;
use bivouac_meta::MetaStore;
use bivouac_node::release::monotonic;
use bivouac_proto::control::{ControlReply, ControlRequest, HELD_MAX, Stats};
use bivouac_proto::status::Failure;
use bivouac_proto::verify::VerifyRequest;
use bivouac_proto::{Errno, Refusal, Reply};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Daemon {
    /// What follows from a control request for the end of this daemon, and for who waits for dead servers.
    pub(super) fn note_control(&self, session: &mut Session, request: &ControlRequest) {
        // A sender that only checks whether the daemon is alive has no map.
        let heard = matches!(request, ControlRequest::Ping { epoch, .. } if *epoch != Epoch(0));
        if let (ControlRequest::Ping { leader, .. }, true) = (request, heard) {
            let now = monotonic();
            if let Some(group) = &self.group {
                group.heard(*leader);
            }
            self.links.refusals.heard(now);
            if let Some(agent) = &self.agent {
                agent.heard(now);
            }
        }
        let begins =
            matches!(request, ControlRequest::Lifeline) && !std::mem::replace(&mut session.lifeline, true);
        // If the holder of the lifeline itself takes the deployment down, its `keep` counts.
        let ends = matches!(request, ControlRequest::Shutdown { .. });
        if ends {
            self.wards.hold();
        }
        session.released |= ends || matches!(request, ControlRequest::Release);
        let Some(tether) = &self.tether else { return };
        match request {
            ControlRequest::Ping { .. } if heard => tether.heard(),
            ControlRequest::Lifeline if begins => tether.hold(),
            ControlRequest::Release => tether.release(),
            _ => {}
        }
    }

    pub(super) fn control(&self, request: &ControlRequest) -> Result<Reply, Failure> {
        let answer = match request {
            ControlRequest::Ping { lease, .. } => {
                if let Some(grant) = lease {
                    // What others have by the newest map, this server must not answer for any more.
                    if let Some(store) = self.meta_store().filter(|_| self.links.map().copies > 1) {
                        store.step_down();
                    }
                    self.links.lease.grant(*grant);
                }
                let clock = Lease::clock();
                let map = self.links.map();
                let epoch = map.epoch;
                let storage = self.storage.as_ref();
                let open = storage.and_then(|storage| storage.open());
                let caught_up = open.map_or(Vec::new(), |open| open.follower.caught_up(&map));
                let suspects = storage.map_or(Vec::new(), |storage| storage.copies.suspects());
                let accounted = self.agent.as_ref().map_or(Epoch(0), |agent| agent.accounted());
                let (boot, unreached) = (self.boot, self.links.reach.unreached());
                let rebuilt = open.map_or(0, |open| open.rebuilder.rebuilt(epoch));
                Some(ControlReply::Pong {
                    epoch,
                    boot,
                    caught_up,
                    suspects,
                    clock,
                    accounted,
                    unreached,
                    rebuilt,
                })
            }
            ControlRequest::Install { news } => self.install(news).err().map(|error| {
                tracing::error!(%error, "a map is not taken");
                ControlReply::Failed { cause: error.to_string() }
            }),
            ControlRequest::Verify(request) => self.verify(request)?,
            ControlRequest::Alone { server } => {
                let store = self.meta_store().ok_or(Refusal::OldServer)?;
                let (files, example) = store.alone_on(*server);
                Some(ControlReply::Alone { files, example })
            }
            ControlRequest::Losses { servers, after } => {
                let store = self.meta_store().ok_or(Refusal::OldServer)?;
                let on_their_way = store.on_their_way();
                Some(ControlReply::Losses { files: store.losses(servers, *after)?, on_their_way })
            }
            ControlRequest::Admit { programs } => {
                let agent = self.agent.as_ref().ok_or(Errno::OPNOTSUPP)?;
                Some(ControlReply::Users(agent.admit(*programs)))
            }
            ControlRequest::Leave { ask } => Some(self.leave(*ask)?),
            ControlRequest::Held => {
                let store = self.meta_store().ok_or(Refusal::OldServer)?;
                let rule = self.links.map().rebuild.map(|rebuild| rebuild.rule);
                Some(ControlReply::Held(rule.map_or(Vec::new(), |rule| store.held_files(rule, HELD_MAX))))
            }
            ControlRequest::Kept => {
                let forwarding = self.forwarding.as_ref().ok_or(Refusal::OldServer)?;
                Some(ControlReply::Held(forwarding.kept(HELD_MAX)))
            }
            ControlRequest::Programs { held } if held.len() <= HELD_MAX => {
                let agent = self.agent.as_ref().ok_or(Errno::OPNOTSUPP)?;
                Some(ControlReply::Programs(agent.holders(held)))
            }
            ControlRequest::Programs { .. } => return Err(Errno::INVAL.into()),
            ControlRequest::Forwarding => Some(ControlReply::Forwarding(self.links.map().forwarding.clone())),
            ControlRequest::Backend { directory } => {
                let refused = bivouac_forward::io_node::check(Path::new(directory)).err();
                let cause = |error| {
                    match error {
                    Errno::LOOP => "there it is the mount of a command that uses it through I/O nodes, in which the server was \
                                    started"
                        .to_owned(),
                    error => error.to_string(),
                }
                };
                refused.map(|error| ControlReply::Failed { cause: cause(error) })
            }
            ControlRequest::Wards => Some(ControlReply::Wards(self.wards.all())),
            ControlRequest::Stats => Some(ControlReply::Stats(Box::new(self.stats()))),
            ControlRequest::Lifeline | ControlRequest::Release => None,
            _ => self.govern(request)?,
        };
        Ok(answer.map_or(Reply::Done, Reply::Control))
    }

    /// Ends this agent, if the servers of its node have left and no program there uses the deployment.
    fn leave(&self, ask: bool) -> Result<ControlReply, Failure> {
        let agent = self.agent.as_ref().ok_or(Errno::OPNOTSUPP)?;
        if self.config.server.is_some() || !self.links.map().is_vacated(self.config.node) {
            return Err(Errno::AGAIN.into());
        }
        let (idle, programs) = agent.leave(ask);
        if idle && !ask {
            self.ending.tell(End::Left);
        }
        Ok(ControlReply::Leaving { idle, programs })
    }

    /// Checks what this server stores.
    fn verify(&self, request: &VerifyRequest) -> Result<Option<ControlReply>, Failure> {
        let storage = self.storage.as_ref().ok_or(Errno::OPNOTSUPP)?;
        let meta = storage.meta_store().ok_or(Refusal::OldServer)?;
        let with = || With {
            me: storage.me,
            links: storage.links.clone(),
            data: storage.data.clone(),
            meta: meta.clone(),
            copies: storage.copies.clone(),
        };
        storage.verifier.serve(request, with)
    }

    /// What concerns the voters, or the controller.
    fn govern(&self, request: &ControlRequest) -> Result<Option<ControlReply>, Failure> {
        let done = |outcome: Result<Option<ControlReply>, ControllerError>| {
            Ok(outcome.unwrap_or_else(|error| {
                tracing::error!(%error, "not done");
                Some(ControlReply::Failed { cause: error.to_string() })
            }))
        };
        let controller = self.group.as_ref().and_then(Group::controller);
        match (&self.group, request, controller) {
            (Some(group), ControlRequest::Found { founding }, _) => {
                done(group.found((**founding).clone()).map(|()| None))
            }
            (Some(group), ControlRequest::Resume { agents, servers }, _) => {
                done(group.resume(agents.clone(), servers.clone()).map(|()| None))
            }
            (Some(group), ControlRequest::Wake { number, agents, servers }, _) => {
                let start = Start { number: *number, agents: agents.clone(), servers: servers.clone() };
                done(group.wake(&start).map(|kept| {
                    let (last, voters) = kept.map(|kept| (kept.last, kept.voters)).unzip();
                    Some(ControlReply::Woken { last, voters: voters.unwrap_or_default() })
                }))
            }
            (Some(group), ControlRequest::Enlist { agents }, _) => done(group.enlist(agents).map(|()| None)),
            (Some(group), ControlRequest::Group, _) => Ok(Some(group.describe(&self.links.map()))),
            (Some(group), request, Some(controller)) => match controller.handle(request) {
                // It has just been deposed.
                Err(ControllerError::NotLeader(_) | ControllerError::Unconfirmed) => {
                    Ok(Some(group.deposed()))
                }
                handled => handled.map_err(|error| Failure::Errno(error.errno())),
            },
            (group, ControlRequest::Shutdown { keep }, None) => {
                if let Some(group) = group {
                    group.retire();
                }
                self.ending.tell(End::Told { keep: *keep });
                Ok(None)
            }
            (Some(group), _, None) => Ok(Some(group.not_leader())),
            (None, _, _) => Err(Errno::OPNOTSUPP.into()),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let all = self.storage.as_ref().map_or(Stats::default(), |storage| storage.stats());
        Stats {
            forwarded: self
                .forwarding
                .as_ref()
                .map_or_else(Default::default, |forwarding| forwarding.counts()),
            connections: self.connections.load(Ordering::Relaxed),
            lease_ms: self.links.lease.left(),
            ..all
        }
    }

    pub(super) fn meta_store(&self) -> Option<&Arc<MetaStore>> {
        self.storage.as_ref()?.meta_store()
    }
}

//! Several requests at once, each over a connection of its own.
//!
//! All go out before any answer is awaited ([`exchange`]). What a broken connection leaves open is repeated
//! alone, under the same identity; what was refused is sent again alone, where refusals are understood.

use super::attempt::open;
use super::identity::Identity;
use super::{Answered, Message, Requester, Silence, Target, call_as, header, is_asked, is_worth_waiting_for};
use crate::connection::Outgoing;
use crate::error::TransportError;
use crate::exchange::{Exchange, exchange};
use bivouac_layout::{Map, ServerId};
use bivouac_proto::status::Failure;
use bivouac_proto::{Errno, Header, RequestId};
use std::borrow::Cow;
use std::io::{IoSlice, IoSliceMut};

/// Most requests under way together to one server: the next one is there when the server is done with one.
const MAX_TO_ONE: usize = 2;

/// One of the requests.
#[derive(Debug)]
pub struct Job<'a, T> {
    to: T,
    body: Cow<'a, [u8]>,
    payload: &'a [u8],
    into: &'a mut [u8],
    outcome: Option<Result<Answered, Failure>>,
    /// The identity of an attempt whose answer was lost.
    sent_as: Option<RequestId>,
    /// There is no other attempt.
    once: bool,
}

impl<'a, T: Target> Job<'a, T> {
    /// A request with this encoded body, what follows it, and room for what follows its answer.
    pub fn new(to: T, body: impl Into<Cow<'a, [u8]>>, payload: &'a [u8], into: &'a mut [u8]) -> Job<'a, T> {
        Job { to, body: body.into(), payload, into, outcome: None, sent_as: None, once: false }
    }

    /// The same, but it is not repeated: nothing depends on it. It goes out together with others.
    pub fn once(self) -> Job<'a, T> {
        Job { once: true, ..self }
    }

    /// How it ended. An outcome is taken once.
    pub fn take(&mut self) -> Result<Answered, Failure> {
        self.outcome.take().unwrap_or(Err(Failure::Errno(Errno::IO)))
    }
}

/// Sends requests to all their servers at once and waits for all answers.
pub fn call_each<R: Requester>(requester: &R, jobs: &mut [Job<'_, R::To>]) {
    if jobs.len() > 1 {
        let mut rest = &mut *jobs;
        while !rest.is_empty() {
            let map = requester.map();
            let (batch, later) = rest.split_at_mut(batch_len(rest, |to| requester.server(to, &map)));
            exchange_all(requester, &map, batch);
            rest = later;
        }
    }
    for job in jobs.iter_mut().filter(|job| job.outcome.is_none() && !job.once) {
        let identity = job.sent_as.map_or_else(Identity::default, Identity::of_lost);
        let message = Message { body: &job.body, payload: &[IoSlice::new(job.payload)], watch: None };
        let answered = call_as(requester, identity, job.to, &message, &mut [IoSliceMut::new(job.into)]);
        job.outcome = Some(answered);
    }
}

/// A request that goes out together with others, and where its end is noted.
struct UnderWay<'j, L> {
    link: L,
    header: Header,
    body: &'j [u8],
    payload: [IoSlice<'j>; 1],
    into: [IoSliceMut<'j>; 1],
    outcome: &'j mut Option<Result<Answered, Failure>>,
    sent_as: &'j mut Option<RequestId>,
}

/// One attempt at each of the requests.
fn exchange_all<R: Requester>(requester: &R, map: &Map, jobs: &mut [Job<'_, R::To>]) {
    let mut asked = Vec::with_capacity(jobs.len());
    let mut under_way = Vec::with_capacity(jobs.len());
    for job in jobs.iter_mut() {
        let server = requester.server(job.to, map);
        if !is_asked::<R>(map, server) || !requester.stands(job.to) {
            continue;
        }
        // A path that has to be walked again: the attempt that is made alone says so.
        let Ok(namespace) = requester.namespace(server, job.to) else { continue };
        let Ok((link, id, _)) = Identity::default().link_for(requester, server, map) else {
            continue;
        };
        asked.push((job.to, server));
        under_way.push(UnderWay {
            link,
            header: Header { namespace, ..header(map, &job.to, id) },
            body: &job.body,
            payload: [IoSlice::new(job.payload)],
            into: [IoSliceMut::new(job.into)],
            outcome: &mut job.outcome,
            sent_as: &mut job.sent_as,
        });
    }
    let mut calls: Vec<Exchange<'_, '_>> = under_way
        .iter_mut()
        .map(|UnderWay { link, header, body, payload, into, .. }| {
            let outgoing = Outgoing { before: &[], header: *header, body, payload };
            Exchange::new(&mut R::lane(link).connection, outgoing, into)
        })
        .collect();
    exchange_patiently(requester, &mut calls, &asked);
    let results: Vec<_> = calls.into_iter().map(|call| call.result).collect();
    for ((mut one, (_, server)), result) in under_way.into_iter().zip(asked).zip(results) {
        match result {
            Some(Ok(received)) => {
                let opened = open(received.header.status, R::lane(&mut one.link).connection.body());
                if !matches!(opened, Err(Failure::Refused(_))) {
                    let (payload_len, fd) = (received.payload_len, received.fd);
                    *one.outcome = Some(opened.map(|reply| Answered { reply, payload_len, fd }));
                }
            }
            _ => *one.sent_as = Some(one.header.id),
        }
        requester.give(server, one.link);
    }
}

/// All calls, each waited out for as long as its server is up.
fn exchange_patiently<R: Requester>(
    requester: &R,
    calls: &mut [Exchange<'_, '_>],
    asked: &[(R::To, ServerId)],
) {
    let silence = Silence::default();
    loop {
        exchange(calls);
        let mut again = false;
        for (call, (to, server)) in calls.iter_mut().zip(asked) {
            if matches!(call.result, Some(Err(TransportError::TimedOut)))
                && is_worth_waiting_for(requester, *to, *server, &silence)
            {
                call.go_on();
                again = true;
            }
        }
        if !again {
            return;
        }
    }
}

/// How many of these requests go out together.
fn batch_len<T: Target>(jobs: &[Job<'_, T>], server: impl Fn(T) -> ServerId) -> usize {
    let to_one = |job: &Job<'_, T>, before: &[Job<'_, T>]| {
        let to = server(job.to);
        before.iter().filter(|other| server(other.to) == to).count()
    };
    let is_full = |index: &usize| to_one(&jobs[*index], &jobs[..*index]) >= MAX_TO_ONE;
    (0..jobs.len()).find(is_full).unwrap_or(jobs.len())
}

#[cfg(test)]
mod tests {
    use super::super::To;
    use super::*;
    use bivouac_layout::ShardId;
    use bivouac_proto::Reply;

    fn job<'a>(server: u16) -> Job<'a, To> {
        Job::new(To::Server(ServerId(server), ShardId(0)), &[][..], &[], &mut [])
    }

    #[test]
    fn a_batch_has_no_more_jobs_for_one_server_than_it_takes_at_once() {
        // These targets do not need one.
        let no_map = Map::before_the_first(7);
        let batch = |servers: &[u16]| {
            let jobs = servers.iter().map(|server| job(*server)).collect::<Vec<_>>();
            batch_len(&jobs, |to: To| to.server(&no_map))
        };
        let many = vec![3; MAX_TO_ONE + 5];
        assert_eq!(batch(&many), MAX_TO_ONE);
        let dealt: Vec<u16> = (0..MAX_TO_ONE as u16 * 3).map(|n| n % 3).collect();
        assert_eq!(batch(&dealt), dealt.len());
        assert_eq!((batch(&[]), batch(&[1])), (0, 1));
    }

    #[test]
    fn a_job_that_nobody_answered_has_failed() {
        let mut job = job(0);
        assert_eq!(job.take().err(), Some(Failure::Errno(Errno::IO)));
        job.outcome = Some(Ok(Answered { reply: Reply::Done, payload_len: 7, fd: None }));
        assert_eq!(job.take().map(|answered| answered.payload_len), Ok(7));
        assert_eq!(job.take().err(), Some(Failure::Errno(Errno::IO)), "an answer is taken once");
    }
}

//! What is to be done, in the order in which it should be.
//!
//! Directories are listed while there is little else to do: so there is always work for all, and not all of a
//! large tree is in memory at once. Tasks that suit one node (because its server holds the directory, or the
//! blocks) are given to its worker first; a worker that has nothing of its own takes from the one that has
//! the most.

use crate::wire::Task;
use std::collections::{BTreeMap, VecDeque};

#[derive(Default)]
pub(super) struct Queue {
    /// Parts of large files, and what is done again: before all others.
    first: VecDeque<Task>,
    own: BTreeMap<u16, VecDeque<Task>>,
    any: VecDeque<Task>,
    /// Directories to list; the last one first, so that few are open at a time.
    lists: Vec<Task>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.lists.is_empty() && self.waiting() == 0
    }

    /// Tasks that wait, without directories.
    fn waiting(&self) -> usize {
        self.first.len() + self.any.len() + self.own.values().map(VecDeque::len).sum::<usize>()
    }

    pub(super) fn put_first(&mut self, task: Task) {
        self.first.push_back(task);
    }

    pub(super) fn put_any(&mut self, task: Task) {
        self.any.push_back(task);
    }

    /// For the worker of a node, if there is one.
    pub(super) fn put_for(&mut self, node: Option<u16>, task: Task) {
        match node {
            Some(node) => self.own.entry(node).or_default().push_back(task),
            None => self.any.push_back(task),
        }
    }

    /// Before others of the node: a part of a large file.
    pub(super) fn put_first_for(&mut self, node: u16, task: Task) {
        self.own.entry(node).or_default().push_front(task);
    }

    pub(super) fn put_list(&mut self, task: Task) {
        self.lists.push(task);
    }

    /// Forgets contents that were to be fetched: of how many files.
    pub(super) fn drop_fetches(&mut self) -> u64 {
        let mut dropped = 0;
        for queue in [&mut self.first, &mut self.any] {
            queue.retain(|task| match task {
                Task::Fetch(files) => {
                    dropped += files.len() as u64;
                    false
                }
                _ => true,
            });
        }
        dropped
    }

    /// A task whose worker has died.
    pub(super) fn put_back(&mut self, task: Task) {
        match task {
            Task::List { .. } => self.lists.push(task),
            _ => self.first.push_front(task),
        }
    }

    /// The next task for the worker of a node. `enough`: if so many wait, directories need not be listed yet.
    pub(super) fn next(&mut self, node: u16, enough: usize) -> Option<Task> {
        if let Some(task) = self.first.pop_front() {
            return Some(task);
        }
        if self.waiting() < enough
            && let Some(task) = self.lists.pop()
        {
            return Some(task);
        }
        let own = self.own.get_mut(&node).and_then(VecDeque::pop_front);
        own.or_else(|| self.any.pop_front())
            .or_else(|| self.lists.pop())
            .or_else(|| self.own.values_mut().max_by_key(|tasks| tasks.len())?.pop_back())
    }
}

/// The path that a task is about.
pub(super) fn path_of(task: &Task) -> Vec<u8> {
    match task {
        Task::Stat { path, .. }
        | Task::List { path, .. }
        | Task::ListThere { path }
        | Task::Begin { path, .. }
        | Task::Section { path, .. }
        | Task::Finish { path, .. }
        | Task::Abandon { path } => path.clone(),
        Task::Items(items) => items.first().map(|item| item.path.clone()).unwrap_or_default(),
        Task::Fetch(files) => files.first().map(|(path, _)| path.clone()).unwrap_or_default(),
        Task::Metas(metas) => metas.first().map(|(path, _)| path.clone()).unwrap_or_default(),
        Task::MakeParents { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(name: &str) -> Task {
        Task::ListThere { path: name.into() }
    }

    #[test]
    fn a_worker_takes_its_own_tasks_first_and_those_of_others_before_it_idles() {
        let mut queue = Queue::default();
        queue.put_for(Some(1), list("one"));
        queue.put_for(Some(2), list("two"));
        queue.put_for(Some(2), list("also two"));
        queue.put_any(list("any"));
        queue.put_list(Task::List { path: b"directory".to_vec(), make: true });
        let mut taken = Vec::new();
        while let Some(task) = queue.next(1, 1) {
            taken.push(String::from_utf8(path_of(&task)).expect("text"));
        }
        assert_eq!(taken, ["one", "any", "directory", "also two", "two"]);
        assert!(queue.is_empty());
    }
}

//! What a command sees through kernel mounts, and where: the deployment at its mount path, and at its own path the directory of the
//! site's storage that is forwarded, if one is.

use bivouac_fuse::Tree;
use std::path::PathBuf;

/// A tree, and the path at which programs look for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// What is seen there.
    pub tree: Tree,
    /// Where.
    pub path: PathBuf,
}

impl View {
    /// The deployment.
    pub fn deployment(mount: &str) -> View {
        View { tree: Tree::Deployment, path: mount.into() }
    }

    /// The directory of the site's storage that is forwarded.
    pub fn forwarded(directory: &str) -> View {
        View { tree: Tree::Forwarded, path: directory.into() }
    }

    /// What mount tables and `df` show as the source of a mount of it.
    pub fn source(&self, deployment: &str) -> String {
        match self.tree {
            Tree::Deployment => deployment.to_owned(),
            Tree::Forwarded => format!("{deployment}:{}", self.path.display()),
        }
    }

    /// The option that would have chosen another path.
    pub fn option(&self) -> &'static str {
        match self.tree {
            Tree::Deployment => "--mount",
            Tree::Forwarded => "--forward",
        }
    }
}

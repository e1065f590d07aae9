//! Preload and flush: copying trees between a deployment and the site's file system.

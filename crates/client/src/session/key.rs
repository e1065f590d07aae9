//! The deployment's key, from its file.

use crate::error::ClientError;
use bivouac_node::Environment;
use bivouac_node::file::FileError;
use bivouac_proto::auth::{KEY_LEN, Key};

/// Longest key file: its digits, and what an editor may have put behind them.
const KEY_FILE_MAX: usize = 2 * KEY_LEN + 64;

/// The key, from the file that the environment names. The environment may come from another node, where the
/// deployment's directory has another name: where there is nothing of ours at the path, it is looked for.
pub(super) fn find_key(environment: &Environment, uid: u32) -> Result<Key, ClientError> {
    let named = read_key(&environment.key_path);
    if named.is_ok() {
        return named;
    }
    match bivouac_node::place::find(uid, &environment.name).map(|dir| bivouac_node::key_path(&dir)) {
        Some(path) if path != environment.key_path => read_key(&path).or(named),
        _ => named,
    }
}

/// Reads a key file: 64 hexadecimal digits.
pub(super) fn read_key(path: &str) -> Result<Key, ClientError> {
    let unusable = |why: String| ClientError::Key { path: path.to_owned(), why };
    let content = match bivouac_node::file::read(path, KEY_FILE_MAX) {
        Ok(content) => content,
        Err(FileError::System(rustix::io::Errno::ACCESS) | FileError::Owner(_)) => {
            return Err(ClientError::Foreign { path: path.to_owned() });
        }
        Err(error) => return Err(unusable(error.to_string())),
    };
    let Some(text) = content.get(..2 * KEY_LEN) else {
        return Err(unusable("it is too short".into()));
    };
    Key::from_hex(text).ok_or_else(|| unusable("it is not hexadecimal".into()))
}

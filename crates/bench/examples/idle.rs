//! Holds connections to the servers of the deployment that it runs in, each of which has had one request:
//! what an idle client costs them. Usage: `bivouac exec NAME -- idle CONNECTIONS ADDRESS...`; the connections
//! are dealt to the addresses. Prints `ready`, then waits for the end of its input.

use bivouac_layout::NodeId;
use bivouac_node::Environment;
use bivouac_proto::auth::{ANY_DEPLOYMENT, Credentials, KEY_LEN, Key, Role};
use bivouac_proto::{Header, Kind};
use bivouac_transport::{ConnectOptions, Connection, Endpoint, Outgoing};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().ok_or("how many connections?")?.parse()?;
    let addresses = arguments.map(|text| text.parse()).collect::<Result<Vec<Endpoint>, _>>()?;
    let environment = Environment::from_env().ok_or("this is no deployment's environment")?;
    let text = std::fs::read_to_string(environment.key_path)?;
    let mut key = [0; KEY_LEN];
    for (index, byte) in key.iter_mut().enumerate() {
        let digits = text.get(2 * index..2 * index + 2).ok_or("the key is too short")?;
        *byte = u8::from_str_radix(digits, 16)?;
    }
    bivouac_transport::raise_descriptor_limit()?;
    let credentials = Credentials {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: Vec::new(),
    };
    let role = Role::Client { credentials, node: NodeId::NONE, job: 0 };
    let mut connections = Vec::new();
    for address in addresses.iter().cycle().take(count) {
        let options = ConnectOptions::default();
        let (mut connection, _) =
            Connection::connect(address, &Key(key), ANY_DEPLOYMENT, role.clone(), &options)?;
        // That it says nothing is refused: an answer, too.
        connection.call(
            &Outgoing { before: &[], header: Header::new(Kind::Request), body: &[], payload: &[] },
            &mut [],
        )?;
        connections.push(connection);
    }
    println!("ready");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

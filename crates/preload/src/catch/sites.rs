//! Finding the `syscall` instructions that are to be caught, and how each can be. Reads only; nothing is
//! changed here.

use super::functions::{Functions, Image};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::ops::Range;

/// Bytes of the `syscall` instruction.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Bytes of a jump to anywhere near, and of one within 127 bytes.
pub const LONG: usize = 5;
pub const SHORT: usize = 2;
/// How far back the number is looked for, instructions.
const LOOK_BACK: usize = 12;
/// How many functions on both sides may have the padding that a short jump needs.
const NEIGHBOURS: usize = 3;

/// A `syscall` instruction that can be caught.
#[derive(Debug, PartialEq, Eq)]
pub struct Site {
    /// The instruction before it, which is replaced.
    pub moved: Range<usize>,
    /// That one's bytes.
    pub bytes: Vec<u8>,
    /// Padding in which a long jump goes, if there is no room for it in place of the instruction.
    pub padding: Option<usize>,
}

impl Site {
    /// Where the `syscall` instruction is: right behind.
    pub fn syscall(&self) -> usize {
        self.moved.end
    }
}

/// What was found.
#[derive(Default, Debug)]
pub struct Found {
    /// What can be caught.
    pub sites: Vec<Site>,
    /// How many others should be caught, or may have to be.
    pub left: usize,
}

/// Finds the sites. `concerns`: whether calls of this number are to be caught. Calls whose number the code
/// does not show are caught.
pub fn find(
    image: &Image<'_>,
    code: &Range<usize>,
    functions: &Functions<'_>,
    concerns: impl Fn(u32) -> bool,
) -> Found {
    let mut found = Found::default();
    let Some(bytes) = image.bytes(code.clone()) else { return found };
    // The function last looked at, as most have several.
    let mut current: Option<(usize, Option<Vec<Instruction>>)> = None;
    let mut taken = Padding { image, functions, used: Vec::new() };
    for offset in candidates(bytes) {
        if plain_number(bytes, offset).is_some_and(|number| !concerns(number)) {
            continue;
        }
        let at = code.start + offset;
        let Some(function) = functions.of(at) else {
            found.left += 1;
            continue;
        };
        if current.as_ref().is_none_or(|(known, _)| *known != function) {
            current = Some((function, instructions(image, functions, function)));
        }
        let Some((_, Some(list))) = &current else {
            found.left += 1;
            continue;
        };
        let Some(index) = list.iter().position(|i| i.ip() == at as u64 && i.code() == Code::Syscall) else {
            // Bytes within another instruction.
            continue;
        };
        let before = list.get(..index).unwrap_or_default();
        if number(before).is_some_and(|number| !concerns(number)) {
            continue;
        }
        let last = before.last().filter(|last| is_movable(last));
        match last.and_then(|last| site(image, last, list, function, &mut taken)) {
            Some(site) => found.sites.push(site),
            None => found.left += 1,
        }
    }
    found
}

/// Where bytes look like a `syscall` instruction.
fn candidates(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let rest = bytes.get(at..)?;
            // The second byte is the rarer one. SAFETY: the range is that of the slice.
            let hit = unsafe { libc::memchr(rest.as_ptr().cast(), i32::from(SYSCALL[1]), rest.len()) };
            if hit.is_null() {
                return None;
            }
            let second = at + (hit as usize - rest.as_ptr() as usize);
            at = second + 1;
            if second > 0 && bytes.get(second - 1) == Some(&SYSCALL[0]) {
                return Some(second - 1);
            }
        }
    })
}

/// The number, where it is loaded right before in the usual way: seen without disassembling. (If these bytes
/// are something else the call escapes, and nothing breaks.)
fn plain_number(bytes: &[u8], offset: usize) -> Option<u32> {
    match bytes.get(offset.checked_sub(LONG)?..offset)? {
        [0xb8, number @ ..] => Some(u32::from_le_bytes(number.try_into().ok()?)),
        _ => None,
    }
}

/// A function's instructions; `None` if it has something that is none.
fn instructions(image: &Image<'_>, functions: &Functions<'_>, index: usize) -> Option<Vec<Instruction>> {
    let range = functions.range(index)?;
    let bytes = image.bytes(range.clone())?;
    let decoder = Decoder::with_ip(64, bytes, range.start as u64, DecoderOptions::NONE);
    decoder.into_iter().map(|one| (!one.is_invalid()).then_some(one)).collect()
}

/// The call's number, if the instructions before it show it.
fn number(before: &[Instruction]) -> Option<u32> {
    for one in before.iter().rev().take(LOOK_BACK) {
        if one.flow_control() != FlowControl::Next {
            return None;
        }
        if one.op_count() == 0 || one.op0_kind() != OpKind::Register || !is_rax(one.op0_register()) {
            continue;
        }
        return match one.mnemonic() {
            Mnemonic::Mov if matches!(one.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64) => {
                Some(one.immediate32())
            }
            Mnemonic::Xor if one.op1_kind() == OpKind::Register && is_rax(one.op1_register()) => Some(0),
            _ => None,
        };
    }
    None
}

fn is_rax(register: Register) -> bool {
    matches!(register, Register::RAX | Register::EAX | Register::AX | Register::AL)
}

/// Whether an instruction does the same elsewhere, and goes on behind itself. It is one that sets a register,
/// as compilers have before a call: anything else may be a sign of something not understood.
fn is_movable(one: &Instruction) -> bool {
    one.flow_control() == FlowControl::Next
        && !one.is_ip_rel_memory_operand()
        && one.op_count() > 0
        && one.op0_kind() == OpKind::Register
}

fn site(
    image: &Image<'_>,
    last: &Instruction,
    list: &[Instruction],
    function: usize,
    padding: &mut Padding<'_>,
) -> Option<Site> {
    let start = last.ip() as usize;
    let moved = start..start + last.len();
    let bytes = image.bytes(moved.clone())?.to_vec();
    let padding = match moved.len() {
        LONG.. => None,
        SHORT.. => Some(padding.near(moved.start + SHORT, list, function)?),
        _ => return None,
    };
    Some(Site { moved, bytes, padding })
}

/// Padding: bytes behind functions that are never executed, and bytes within functions before the targets of
/// jumps.
struct Padding<'a> {
    image: &'a Image<'a>,
    functions: &'a Functions<'a>,
    used: Vec<usize>,
}

impl Padding<'_> {
    /// Room for a long jump that a short one reaches whose end is `from`, in a function with these
    /// instructions or beside it.
    fn near(&mut self, from: usize, list: &[Instruction], function: usize) -> Option<usize> {
        let neighbours = function.saturating_sub(NEIGHBOURS)..=function + NEIGHBOURS;
        let behind = neighbours.filter_map(|index| self.behind(index));
        let place = within(list).into_iter().chain(behind).find_map(|gap| {
            let mut places = (gap.start..=gap.end.checked_sub(LONG)?).step_by(LONG);
            places.find(|place| {
                let distance = *place as isize - from as isize;
                i8::try_from(distance).is_ok() && !self.used.contains(place)
            })
        })?;
        self.used.push(place);
        Some(place)
    }

    /// The padding behind a function, if it is nothing else, and nothing runs into it.
    fn behind(&self, index: usize) -> Option<Range<usize>> {
        let gap = self.functions.gap(index).filter(|gap| gap.len() >= LONG)?;
        let bytes = self.image.bytes(gap.clone())?;
        let mut decoder = Decoder::with_ip(64, bytes, gap.start as u64, DecoderOptions::NONE);
        if !decoder.iter().all(|one| is_nothing(&one)) {
            return None;
        }
        let list = instructions(self.image, self.functions, index)?;
        leaves(list.last()?).then_some(gap)
    }
}

fn is_nothing(one: &Instruction) -> bool {
    matches!(one.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
}

/// Whether execution never goes on behind an instruction.
fn leaves(one: &Instruction) -> bool {
    matches!(
        one.flow_control(),
        FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
    )
}

/// Padding between the instructions of a function: behind one after which execution does not go on, where no
/// jump leads.
fn within(list: &[Instruction]) -> Vec<Range<usize>> {
    let mut gaps = Vec::new();
    let mut rest = list;
    while let Some(index) = rest.iter().position(leaves) {
        rest = rest.get(index + 1..).unwrap_or_default();
        let count = rest.iter().take_while(|one| is_nothing(one)).count();
        let (Some(first), Some(next)) = (rest.first(), rest.get(count)) else { break };
        let gap = first.ip()..next.ip();
        if count > 0 && !list.iter().any(|one| gap.contains(&one.near_branch_target())) {
            gaps.push(gap.start as usize..gap.end as usize);
        }
    }
    gaps
}

#[cfg(test)]
mod tests;

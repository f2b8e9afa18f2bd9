"""Kernels of one bank made ones of several. Seeded fault seen to fail: `.w` of a vector renamed."""

from __future__ import annotations

from zllm.kernel.wgsl.several import several

ONE = """@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;
override BANK_FIRST: u32; // of the bank
fn fetch(at: u32) -> vec4<u32> {
    return w[at];
}

fn sum(v: vec4<u32>) -> u32 {
    return v.x + v.w;
}

fn root(expert: u32, row: u32) -> u32 {
    return sum(fetch(expert - BANK_FIRST + row)) + v.w;
}

fn user(expert: u32) -> u32 {
    return root(expert, 0u);
}"""

TWO = """@group(0) @binding(0) var<storage, read> w_0: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> w_1: array<vec4<u32>>;
override BANK_FIRST_0: u32; // of the bank

override BANK_FIRST_1: u32; // of the bank
fn fetch_0(at: u32) -> vec4<u32> {
    return w_0[at];
}

fn fetch_1(at: u32) -> vec4<u32> {
    return w_1[at];
}

fn sum(v: vec4<u32>) -> u32 {
    return v.x + v.w;
}

fn root_0(expert: u32, row: u32) -> u32 {
    return sum(fetch_0(expert - BANK_FIRST_0 + row)) + v.w;
}

fn root_1(expert: u32, row: u32) -> u32 {
    return sum(fetch_1(expert - BANK_FIRST_1 + row)) + v.w;
}

fn root(expert: u32, row: u32) -> u32 {
    if (expert >= BANK_FIRST_1) { return root_1(expert, row); }
    return root_0(expert, row);
}

fn user(expert: u32) -> u32 {
    return root(expert, 0u);
}"""


def test_functions_that_reach_the_bank_are_copied() -> None:
    assert several(ONE, "root", (0, 5)) == TWO


def test_a_root_without_a_result() -> None:
    text = "fn root(expert: u32) {\n    s = w[expert];\n}"
    lines = several(text, "root", (0, 2, 5)).split("\n")
    assert lines[-5:] == [
        "fn root(expert: u32) {",
        "    if (expert >= BANK_FIRST_2) { root_2(expert); return; }",
        "    if (expert >= BANK_FIRST_1) { root_1(expert); return; }",
        "    root_0(expert);",
        "}",
    ]

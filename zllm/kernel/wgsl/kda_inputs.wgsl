// What both forms of the gated delta rule take from each row (zllm.attention.kda).
@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read> g: array<f32>;
@group(0) @binding(4) var<storage, read> beta: array<f32>;
@group(0) @binding(5) var<storage, read> step: array<i32>;

override SIZE: u32;
override SCALE: f32; // of q
override Q_OFFSET: u32;
override Q_STRIDE: u32;
override K_OFFSET: u32;
override K_STRIDE: u32;
override V_OFFSET: u32;
override V_STRIDE: u32;
override G_OFFSET: u32;
override G_STRIDE: u32;
override BETA_OFFSET: u32;
override BETA_STRIDE: u32;

const NORM_EPS = 1e-6; // flash-linear-attention, fla/modules/l2norm.py

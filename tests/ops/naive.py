# SPDX-License-Identifier: Apache-2.0
"""The ops once more, as loops over single numbers in float64, written from their equations."""

from __future__ import annotations

import itertools
import math

import numpy as np

CORNERS = list(itertools.product((0, 1), repeat=3))


def rays_of(ray_offsets) -> list[range]:
    return [range(int(a), int(b)) for a, b in itertools.pairwise(ray_offsets)]


def trilinear(feats, points):
    out = np.zeros((feats.shape[0], feats.shape[2]))
    for n, point in enumerate(points):
        u = (point + 1) / 2
        for x, y, z in CORNERS:
            weight = math.prod(u[a] if bit else 1 - u[a] for a, bit in enumerate((x, y, z)))
            out[n] += weight * feats[n, 4 * x + 2 * y + z]
    return (out,)


def grid_encode(points, table, resolutions, max_entries):
    levels, start = [], 0
    for n in resolutions:
        level = np.zeros((len(points), table.shape[1]))
        dense = (n + 1) ** 3 <= max_entries
        for row, point in enumerate(points):
            scaled = np.clip(point, 0, 1) * n
            low = [min(int(s), n - 1) for s in scaled]
            for corner in CORNERS:
                x, y, z = (v + bit for v, bit in zip(low, corner, strict=True))
                weight = math.prod(s - v if bit else 1 - (s - v) for s, v, bit in zip(scaled, low, corner, strict=True))
                index = (x * (n + 1) + y) * (n + 1) + z if dense else (x ^ y * 2654435761 ^ z * 805459861) % max_entries
                level[row] += weight * table[start + index]
        levels.append(level)
        start += min(-(-((n + 1) ** 3) // 8) * 8, max_entries)
    return (np.concatenate(levels, axis=1),)


def depthwise_conv2d(x, weight, bias, stride, padding, dilation):
    (sy, sx), (py, px), (dy, dx) = ((v, v) if isinstance(v, int) else v for v in (stride, padding, dilation))
    b, c, h, w = x.shape
    kh, kw = weight.shape[2:]
    out = np.zeros((b, c, (h + 2 * py - dy * (kh - 1) - 1) // sy + 1, (w + 2 * px - dx * (kw - 1) - 1) // sx + 1))
    for n, k, i, j in np.ndindex(out.shape):
        out[n, k, i, j] = 0 if bias is None else bias[k]
        for u, v in itertools.product(range(kh), range(kw)):
            row, column = i * sy + u * dy - py, j * sx + v * dx - px
            if 0 <= row < h and 0 <= column < w:
                out[n, k, i, j] += weight[k, 0, u, v] * x[n, k, row, column]
    return (out,)


def depthwise_conv1d(x, weight, bias, ray_offsets, stride, padding, dilation):
    taps = weight.shape[1]
    padding = dilation * (taps - 1) // 2 if padding is None else padding
    if ray_offsets is None:
        image, kernel = x[:, :, None, :], weight[:, None, None, :]
        (out,) = depthwise_conv2d(image, kernel, bias, (1, stride), (0, padding), (1, dilation))
        return (out[:, :, 0],)
    out = np.zeros(x.shape)
    for ray in rays_of(ray_offsets):
        for i in ray:
            out[i] = 0 if bias is None else bias
            for tap in range(taps):
                j = i + tap * dilation - padding
                if j in ray:
                    out[i] += weight[:, tap] * x[j]
    return (out,)


def lltm_cell(input, h, c, weight, bias):
    def sigmoid(a):
        return 1 / (1 + np.exp(-a))

    gates = np.concatenate([h, input], axis=1) @ weight.T + bias
    i, o, g = np.split(gates, 3, axis=1)
    c = c + np.where(g > 0, g, np.expm1(np.minimum(g, 0))) * sigmoid(i)
    return np.tanh(c) * sigmoid(o), c


def lltm(input, ray_offsets, weight, bias, h0, c0):
    out, h_n, c_n = np.zeros((len(input), h0.shape[1])), h0.copy(), c0.copy()
    for r, ray in enumerate(rays_of(ray_offsets)):
        for i in ray:
            h, c = lltm_cell(input[i : i + 1], h_n[r : r + 1], c_n[r : r + 1], weight, bias)
            out[i], h_n[r], c_n[r] = h[0], h[0], c[0]
    return out, h_n, c_n


def mlp(parameters, widths, *inputs):
    x, start = np.concatenate(inputs, axis=1), 0
    for layer, (n_in, n_out) in enumerate(zip(widths, widths[1:], strict=False)):
        out = np.zeros((len(x), n_out))
        for o in range(n_out):
            weight, bias = parameters[start + o * n_in : start + (o + 1) * n_in], parameters[start + n_in * n_out + o]
            for n in range(len(x)):
                out[n, o] = sum(weight * x[n]) + bias
        start += (n_in + 1) * n_out
        x = out if layer == len(widths) - 2 else np.maximum(out, 0)
    return (x,)


def contract(position, box):
    u = (position - (box[0] + box[1]) / 2) / ((box[1] - box[0]) / 2)
    m = np.abs(u).max()
    return u if m <= 1 else (2 - 1 / m) * u / m


def march_edges(origins, directions, occupancy, box, jitter, capacity, t_edges):
    starts, ends, counts = [], [], []
    for r, (o, d) in enumerate(zip(origins, directions, strict=True)):
        counts.append(0)
        j = 0 if jitter is None else jitter[r]
        if not (np.isfinite(o).all() and np.isfinite(d).all() and d.any()):
            continue
        for k in range(len(t_edges) - 2):
            a, b = (t_edges[i] + j * (t_edges[i + 1] - t_edges[i]) for i in (k, k + 1))
            cell = np.floor((contract(o + d * (a + b) / 2, box) + 2) / 4 * occupancy.shape).astype(int)
            if occupancy[tuple(np.clip(cell, 0, np.array(occupancy.shape) - 1))]:
                starts.append(a), ends.append(b)
                counts[-1] += 1
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=int)])
    rows = len(starts) if capacity is None else capacity
    used = offsets[offsets <= rows][-1]
    return *(np.array(t[:used] + [0.0] * (rows - used), dtype=float) for t in (starts, ends)), offsets


def march(origins, directions, occupancy, box, step, near, far, jitter, capacity=None, t_edges=None):
    if t_edges is not None:
        return march_edges(origins, directions, occupancy, box, jitter, capacity, t_edges)
    starts, counts = [], []
    for r, (o, d) in enumerate(zip(origins, directions, strict=True)):
        with np.errstate(divide="ignore"):
            sides = np.sort((box - o) / d, axis=0)
        enter, leave = max(sides[0].max(), near), min(sides[1].min(), far)
        kept, k = [], 0
        while (middle := enter + (k + 0.5 + (0 if jitter is None else jitter[r])) * step) < leave:
            cell = ((o + d * middle - box[0]) / (box[1] - box[0]) * occupancy.shape).astype(int)
            if occupancy[tuple(np.clip(cell, 0, np.array(occupancy.shape) - 1))]:
                kept.append(middle - step / 2)
            k += 1
        starts += kept
        counts.append(len(kept))
    starts = np.array(starts, dtype=float)
    return starts, starts + step, np.concatenate([[0], np.cumsum(counts)])


def count_visible(density, t_starts, t_ends, ray_offsets, early_stop_transmittance):
    counts = []
    for ray in rays_of(ray_offsets):
        thickness, count = 0.0, 0
        while count < len(ray) and math.exp(-thickness) > early_stop_transmittance:
            i = ray[count]
            thickness += min(density[i] * (t_ends[i] - t_starts[i]), 50)
            count += 1
        counts.append(count)
    return (np.array(counts, dtype=int),)


def compact_samples(origins, directions, t_starts, t_ends, source_offsets, ray_offsets, n_rows):
    positions, starts, ends = np.zeros((n_rows, 3)), np.zeros(n_rows), np.zeros(n_rows)
    ray_index = np.full(n_rows, max(len(origins) - 1, 0))
    for r, ray in enumerate(rays_of(ray_offsets)):
        for k, row in enumerate(ray):
            starts[row], ends[row] = t_starts[source_offsets[r] + k], t_ends[source_offsets[r] + k]
            positions[row] = origins[r] + directions[r] * (starts[row] + ends[row]) / 2
            ray_index[row] = r
    return positions, starts, ends, ray_index


def spherical_harmonics(directions, ray_index=None):
    rows = directions if ray_index is None else directions[ray_index]
    out = np.zeros((len(rows), 16))
    for n, (x, y, z) in enumerate(rows):
        for column in range(16):
            degree = math.isqrt(column)
            order = column - degree**2 - degree
            k = abs(order)
            share = (2 * degree + 1) / (4 * math.pi) * math.factorial(degree - k) / math.factorial(degree + k)
            turn = (x + 1j * y) ** k
            around = math.sqrt(2) * turn.imag if order < 0 else 1 if order == 0 else math.sqrt(2) * turn.real
            out[n, column] = (-1) ** k * math.sqrt(share) * np.polynomial.Legendre.basis(degree).deriv(k)(z) * around
    return (out,)


def composite(density, rgb, t_starts, t_ends, ray_offsets, background):
    rays = rays_of(ray_offsets)
    color, opacity, depth = np.zeros((len(rays), 3)), np.zeros(len(rays)), np.zeros(len(rays))
    weights = np.zeros(len(density))
    for r, ray in enumerate(rays):
        through = 1.0
        for i in ray:
            alpha = 1 - math.exp(-density[i] * (t_ends[i] - t_starts[i]))
            weights[i] = through * alpha
            through *= 1 - alpha
            color[r] += weights[i] * rgb[i]
            opacity[r] += weights[i]
            depth[r] += weights[i] * (t_starts[i] + t_ends[i]) / 2
        color[r] += (1 - opacity[r]) * (background if background.ndim == 1 else background[r])
        depth[r] /= max(opacity[r], 1e-10)
    return color, opacity, depth, weights


def distortion(weights, t_starts, t_ends, ray_offsets, near, far, linear):
    def g(t):
        return t / linear if t < linear else 1 + math.log(t / linear)

    def s(t):
        return (g(t) - g(near)) / (g(far) - g(near))

    rays = rays_of(ray_offsets)
    losses = np.zeros(len(rays))
    for r, ray in enumerate(rays):
        for i in ray:
            losses[r] += weights[i] ** 2 * (s(t_ends[i]) - s(t_starts[i])) / 3
            for j in ray:
                apart = abs(s(t_starts[i]) + s(t_ends[i]) - s(t_starts[j]) - s(t_ends[j])) / 2
                losses[r] += weights[i] * weights[j] * apart
    return (losses,)


def lazy_adam(param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps, grad_scale, found_inf):
    new = param.copy(), exp_avg.copy(), exp_avg_sq.copy()
    if found_inf is not None and found_inf.item():
        return new
    for place, scaled in np.ndenumerate(grad):
        g = scaled if grad_scale is None else scaled / grad_scale.item()
        if g == 0:
            continue
        m = beta1 * exp_avg[place] + (1 - beta1) * g
        v = beta2 * exp_avg_sq[place] + (1 - beta2) * g**2
        change = lr * (m / (1 - beta1**step)) / (math.sqrt(v / (1 - beta2**step)) + eps)
        for x, value in zip(new, (param[place] - change, m, v), strict=True):
            x[place] = value
    return new

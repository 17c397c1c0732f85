"""A loss of one's own: python examples/own_loss.py SCENE STEPS, or, in this folder,
nerfkit train SCENE --trainer.loss own_loss:robust"""

import sys

import nerfkit


def robust(rendering, batch):
    """L1 over pixels [R]; `weight` [R] is 0 for rays that do not count. Terms are added, and logged by their names."""
    error = (rendering.color - nerfkit.blend(batch.pixels, batch.background)).abs().mean(-1)
    return {"l1": nerfkit.weighted_mean(error, batch.weight)}


if __name__ == "__main__":
    config = nerfkit.Config()
    config.trainer.steps = int(sys.argv[2])
    trainer = nerfkit.Trainer(config, scene=nerfkit.load_scene(sys.argv[1]), loss_fn=robust)
    trainer.train(progress_bar=True)  # with trainer.distortion and all else that the scene asks for
    print(trainer.pop_stats())  # has "loss.l1", and "psnr" of the pixels

"""Fit a linear regression by gradient descent on rows that a hidden linear rule has made."""

from training import batch_at, gaussian, repeat, train


class Linear:
    """A linear regression: the smallest of the samples."""

    lr, samples, width, steps, batch = 0.0006, 100_000, 64, 640, 4096

    def __init__(self, options, matrices):
        self.matrices, self.lr = matrices, options.lr
        block = matrices.matrix(gaussian(512, options.width, seed=1))
        rule = matrices.matrix(gaussian(options.width, 4, seed=2))
        noise = matrices.matrix(gaussian(512, 4, seed=3, scale=0.1))
        self.data = repeat(matrices, block, options.samples)
        self.targets = repeat(matrices, block @ rule + noise, options.samples)
        self.weights = {"w": matrices.matrix([[0.0] * 4] * options.width)}

    def step(self, offset, rows):
        begin = batch_at(self.data, offset, rows)
        x, y = self.data[begin : begin + rows], self.targets[begin : begin + rows]
        error = x @ self.weights["w"] - y
        self.weights["w"] = self.weights["w"] - (x.T @ error) * (self.lr / rows)
        return (error * error).mean()


if __name__ == "__main__":
    train(Linear)

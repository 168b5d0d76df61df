"""Train a network with one hidden layer to imitate another one, by hand-written backpropagation."""

from training import batch_at, gaussian, repeat, train


class Mlp:
    """A small multi-layer perceptron."""

    lr, samples, width, steps, batch = 0.02, 360_000, 32, 90, 4096

    def __init__(self, options, matrices):
        self.matrices, self.lr = matrices, options.lr
        block = matrices.matrix(gaussian(512, 128, seed=11))
        inner = matrices.matrix(gaussian(128, 8, seed=12, scale=0.1))
        outer = matrices.matrix(gaussian(8, 4, seed=13))
        self.data = repeat(matrices, block, options.samples)
        noise = matrices.matrix(gaussian(512, 4, seed=16, scale=0.1))
        self.targets = repeat(matrices, matrices.tanh(block @ inner) @ outer + noise, options.samples)
        unseen = matrices.matrix(gaussian(256, 128, seed=17))
        self.held_out = unseen, matrices.tanh(unseen @ inner) @ outer
        self.weights = {
            "w1": matrices.matrix(gaussian(128, options.width, seed=14, scale=0.05)),
            "w2": matrices.matrix(gaussian(options.width, 4, seed=15, scale=0.05)),
        }

    def step(self, offset, rows):
        begin = batch_at(self.data, offset, rows)
        x, y = self.data[begin : begin + rows], self.targets[begin : begin + rows]
        w1, w2 = self.weights["w1"], self.weights["w2"]
        hidden = self.matrices.tanh(x @ w1)
        error = hidden @ w2 - y
        back = (error @ w2.T) * (1.0 - hidden * hidden)
        self.weights["w2"] = w2 - (hidden.T @ error) * (self.lr / rows)
        self.weights["w1"] = w1 - (x.T @ back) * (self.lr / rows)
        return (error * error).mean()

    def validate(self):
        """Return what the epoch's line says about rows that are in no batch."""
        x, y = self.held_out
        error = self.matrices.tanh(x @ self.weights["w1"]) @ self.weights["w2"] - y
        return f" val_loss {float((error * error).mean()):.4f}"


if __name__ == "__main__":
    train(Mlp)

"""Train an autoencoder with tied weights; its validation after every epoch needs more memory for a moment."""

from training import batch_at, gaussian, repeat, train

CHUNK = 4096  # rows that are reconstructed at once


class Autoencoder:
    """An autoencoder whose validation keeps a reconstruction of a part of the dataset."""

    lr, samples, width, steps, batch = 0.01, 700_000, 16, 80, 4096

    def __init__(self, options, matrices):
        self.matrices, self.lr = matrices, options.lr
        hidden = matrices.matrix(gaussian(512, 12, seed=21, scale=0.3))
        mix = matrices.matrix(gaussian(12, 96, seed=22, scale=0.3))
        self.data = repeat(matrices, hidden @ mix, options.samples)
        self.weights = {"w": matrices.matrix(gaussian(96, options.width, seed=23, scale=0.1))}

    def step(self, offset, rows):
        begin = batch_at(self.data, offset, rows)
        x, w = self.data[begin : begin + rows], self.weights["w"]
        code = self.matrices.tanh(x @ w)
        error = code @ w.T - x
        back = (error @ w) * (1.0 - code * code)
        self.weights["w"] = w - (x.T @ back + error.T @ code) * (self.lr / rows)
        return (error * error).mean()

    def validate(self):
        """Reconstruct a third of the dataset and return what the epoch's line says about it."""
        w, thrift = self.weights["w"], self.matrices.thrift
        rows, chunk = len(self.data) // 3, CHUNK // thrift
        reconstruction = self.matrices.zeros(rows, 96)
        total, chunks = 0.0, range(0, rows - chunk + 1, chunk * thrift)
        for begin in chunks:
            x = self.data[begin : begin + chunk]
            reconstruction[begin : begin + chunk] = self.matrices.tanh(x @ w) @ w.T
            error = reconstruction[begin : begin + chunk] - x
            total += float((error * error).mean())
        return f" val_loss {total / max(1, len(chunks)):.4f}"


if __name__ == "__main__":
    train(Autoencoder)

"""Learn embeddings of words: a passage is the sum of those of its words, and its topics are told from it."""

from training import batch_at, gaussian, repeat, train

WORDS, TOPICS = 128, 24


class Embedding:
    """A table of word embeddings under a linear classifier; the largest dataset of the samples."""

    lr, samples, width, steps, batch = 0.00015, 1_100_000, 16, 100, 6144

    def __init__(self, options, matrices):
        self.matrices, self.lr = matrices, options.lr
        meanings = matrices.matrix(gaussian(6, WORDS, seed=31))
        topics = matrices.matrix(gaussian(6, TOPICS, seed=32))
        passages = matrices.matrix(gaussian(512, 6, seed=33))
        noise = matrices.matrix(gaussian(512, TOPICS, seed=34, scale=0.2))
        self.data = repeat(matrices, passages @ meanings, options.samples)
        self.targets = repeat(matrices, passages @ topics + noise, options.samples)
        self.weights = {
            "words": matrices.matrix(gaussian(WORDS, options.width, seed=35, scale=0.02)),
            "topics": matrices.matrix(gaussian(options.width, TOPICS, seed=36, scale=0.1)),
        }

    def step(self, offset, rows):
        begin = batch_at(self.data, offset, rows)
        x, y = self.data[begin : begin + rows], self.targets[begin : begin + rows]
        words, topics = self.weights["words"], self.weights["topics"]
        embedded = x @ words
        error = embedded @ topics - y
        self.weights["topics"] = topics - (embedded.T @ error) * (self.lr / rows)
        self.weights["words"] = words - (x.T @ (error @ topics.T)) * (self.lr / rows)
        return (error * error).mean()


if __name__ == "__main__":
    train(Embedding)

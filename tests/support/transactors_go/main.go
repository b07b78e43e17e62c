// Consumes, transforms and produces in transactions until its input ends: transactor BOOTSTRAP SOURCE TARGET NAME SEED.
// Prints a line for each transaction: commit or abort. An error makes the session anew.
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var stopping atomic.Bool

func main() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stopping.Store(true)
	}()
	seed, err := strconv.ParseInt(os.Args[5], 10, 64)
	if err != nil {
		panic(err)
	}
	draw := rand.New(rand.NewSource(seed))
	for !stopping.Load() {
		if err := work(os.Args[1], os.Args[2], os.Args[3], os.Args[4], draw); err != nil {
			fmt.Println("restart", err)
		}
	}
}

func work(bootstrap, source, target, name string, draw *rand.Rand) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.TransactionalID(name),
		kgo.TransactionTimeout(30*time.Second),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumerGroup(name),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.SessionTimeout(6*time.Second),
		kgo.RequireStableFetchOffsets(),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	ctx := context.Background()
	for !stopping.Load() {
		polling, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		fetches := session.PollRecords(polling, 20)
		cancel()
		if fetches.Empty() {
			continue
		}
		commit := kgo.TryCommit
		if draw.Intn(8) == 0 {
			commit = kgo.TryAbort
		}
		if err := session.Begin(); err != nil {
			return err
		}
		failed := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			value := record.Value
			if commit == kgo.TryAbort {
				value = append([]byte("!"), value...)
			}
			session.Produce(ctx, &kgo.Record{Topic: target, Partition: record.Partition, Value: value}, failed.Promise())
		})
		committed, err := session.End(ctx, commit == kgo.TryCommit && failed.Err() == nil)
		if err != nil {
			return err
		}
		if committed {
			fmt.Println("commit")
		} else {
			fmt.Println("abort")
		}
	}
	return nil
}

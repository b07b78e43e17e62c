// franz-go: franz BOOTSTRAP PREFIX. Prints a line of JSON for each step.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	records  = 50
	patience = 60 * time.Second
)

var bootstrap, prefix = os.Args[1], os.Args[2]

func main() {
	step("records", readAndWrite)
	step("group", func(ctx context.Context) error { return group(ctx, "classic") })
	step("group848", func(ctx context.Context) error { return group(ctx, "consumer") })
	step("transactions", transactions)
	step("admin", administer)
}

func step(name string, act func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	text := ""
	if err := act(ctx); err != nil {
		text = err.Error()
	}
	line, _ := json.Marshal(map[string]string{"step": name, "error": text})
	fmt.Println(string(line))
}

func client(options ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(options, kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
}

func create(ctx context.Context, name string, partitions int32) (string, error) {
	topic := prefix + "-" + name
	one, err := client()
	if err != nil {
		return "", err
	}
	defer one.Close()
	_, err = kadm.NewClient(one).CreateTopic(ctx, partitions, 1, nil, topic)
	return topic, err
}

func write(ctx context.Context, one *kgo.Client, topic string, partition int32, values []string) error {
	rows := make([]*kgo.Record, 0, len(values))
	for _, value := range values {
		rows = append(rows, &kgo.Record{Topic: topic, Partition: partition, Value: []byte(value)})
	}
	return one.ProduceSync(ctx, rows...).FirstErr()
}

func read(ctx context.Context, topic string, wanted []string, level kgo.IsolationLevel) error {
	one, err := client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
		kgo.FetchIsolationLevel(level),
	)
	if err != nil {
		return err
	}
	defer one.Close()
	found := []string{}
	for len(found) < len(wanted) {
		fetches := one.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(row *kgo.Record) { found = append(found, string(row.Value)) })
	}
	for at, value := range wanted {
		if found[at] != value {
			return fmt.Errorf("found %s, wanted %s", found[at], value)
		}
	}
	return nil
}

func numbered(text string) []string {
	values := []string{}
	for number := 0; number < records; number++ {
		values = append(values, fmt.Sprintf("%s %d", text, number))
	}
	return values
}

func readAndWrite(ctx context.Context) error {
	topic, err := create(ctx, "records", 1)
	if err != nil {
		return err
	}
	wanted := []string{}
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		one, err := client(kgo.ProducerBatchCompression(codec))
		if err != nil {
			return err
		}
		err = write(ctx, one, topic, 0, numbered(name))
		one.Close()
		if err != nil {
			return err
		}
		wanted = append(wanted, numbered(name)...)
	}
	return read(ctx, topic, wanted, kgo.ReadUncommitted())
}

func group(ctx context.Context, protocol string) error {
	topic, err := create(ctx, "group-"+protocol, 4)
	if err != nil {
		return err
	}
	writer, err := client()
	if err != nil {
		return err
	}
	defer writer.Close()
	for partition := int32(0); partition < 4; partition++ {
		if err := write(ctx, writer, topic, partition, numbered("g")); err != nil {
			return err
		}
	}
	if protocol == "consumer" {
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	id := prefix + "-" + protocol
	options := []kgo.Opt{
		kgo.ConsumerGroup(id), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(), kgo.WithContext(ctx),
	}
	members := []*kgo.Client{}
	owned := []map[int32]bool{{}, {}}
	for at := range owned {
		mine := owned[at]
		one, err := client(append(options,
			kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, got map[string][]int32) {
				for _, number := range got[topic] {
					mine[number] = true
				}
			}),
			kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
				for _, number := range lost[topic] {
					delete(mine, number)
				}
			}),
			kgo.BlockRebalanceOnPoll())...)
		if err != nil {
			return err
		}
		defer one.Close()
		members = append(members, one)
	}
	found := map[string]bool{}
	for len(found) < 4*records || len(owned[0]) != 2 || len(owned[1]) != 2 {
		for _, one := range members {
			polling, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			fetches := one.PollFetches(polling)
			cancel()
			fetches.EachRecord(func(row *kgo.Record) { found[fmt.Sprint(row.Partition, "/", row.Offset)] = true })
			if err := one.CommitUncommittedOffsets(ctx); err != nil {
				return err
			}
			one.AllowRebalance()
		}
		if ctx.Err() != nil {
			return fmt.Errorf("two members do not share four partitions: %d records", len(found))
		}
	}
	committed, err := kadm.NewClient(writer).FetchOffsets(ctx, id)
	if err != nil {
		return err
	}
	for partition := int32(0); partition < 4; partition++ {
		if row, ok := committed.Lookup(topic, partition); !ok || row.At != records {
			return fmt.Errorf("partition %d is committed at %d", partition, row.At)
		}
	}
	return nil
}

func transactions(ctx context.Context) error {
	topic, err := create(ctx, "transactions", 1)
	if err != nil {
		return err
	}
	one, err := client(kgo.TransactionalID(prefix + "-id"))
	if err != nil {
		return err
	}
	defer one.Close()
	wanted := []string{}
	for number := 0; number < 3; number++ {
		if err := one.BeginTransaction(); err != nil {
			return err
		}
		values := numbered(fmt.Sprint(number))
		if err := write(ctx, one, topic, 0, values); err != nil {
			return err
		}
		end := kgo.TryCommit
		if number == 1 {
			end = kgo.TryAbort
		} else {
			wanted = append(wanted, values...)
		}
		if err := one.EndTransaction(ctx, end); err != nil {
			return err
		}
	}
	return read(ctx, topic, wanted, kgo.ReadCommitted())
}

func administer(ctx context.Context) error {
	topic, err := create(ctx, "admin", 1)
	if err != nil {
		return err
	}
	one, err := client()
	if err != nil {
		return err
	}
	defer one.Close()
	admin := kadm.NewClient(one)
	if _, err := admin.UpdatePartitions(ctx, 3, topic); err != nil {
		return err
	}
	value := "60000"
	if _, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}, topic); err != nil {
		return err
	}
	described, err := admin.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return err
	}
	for _, config := range described[0].Configs {
		if config.Key == "retention.ms" && config.MaybeValue() != value {
			return fmt.Errorf("retention.ms is %s", config.MaybeValue())
		}
	}
	if _, err := admin.ListGroups(ctx); err != nil {
		return err
	}
	_, err = admin.DeleteTopic(ctx, topic)
	return err
}

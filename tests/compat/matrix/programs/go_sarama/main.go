// Sarama: sarama BOOTSTRAP PREFIX. Prints a line of JSON for each step.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const (
	records  = 50
	patience = 60 * time.Second
)

var bootstrap, prefix = []string{os.Args[1]}, os.Args[2]

func main() {
	step("records", readAndWrite)
	step("group", group)
	report("group848", "-")
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
	report(name, text)
}

func report(name, text string) {
	line, _ := json.Marshal(map[string]string{"step": name, "error": text})
	fmt.Println(string(line))
}

func config() *sarama.Config {
	found := sarama.NewConfig()
	found.Version = sarama.MaxVersion
	found.Producer.Return.Successes = true
	found.Producer.RequiredAcks = sarama.WaitForAll
	found.Producer.Partitioner = sarama.NewManualPartitioner
	found.Consumer.Offsets.Initial = sarama.OffsetOldest
	found.Consumer.Offsets.AutoCommit.Enable = false
	return found
}

func create(name string, partitions int32) (string, error) {
	topic := prefix + "-" + name
	admin, err := sarama.NewClusterAdmin(bootstrap, config())
	if err != nil {
		return "", err
	}
	defer admin.Close()
	return topic, admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false)
}

func send(producer sarama.SyncProducer, topic string, partition int32, values []string) error {
	rows := []*sarama.ProducerMessage{}
	for _, value := range values {
		rows = append(rows, &sarama.ProducerMessage{Topic: topic, Partition: partition, Value: sarama.StringEncoder(value)})
	}
	return producer.SendMessages(rows)
}

func numbered(text string) []string {
	values := []string{}
	for number := 0; number < records; number++ {
		values = append(values, fmt.Sprintf("%s %d", text, number))
	}
	return values
}

func read(ctx context.Context, topic string, wanted []string, level sarama.IsolationLevel) error {
	settings := config()
	settings.Consumer.IsolationLevel = level
	consumer, err := sarama.NewConsumer(bootstrap, settings)
	if err != nil {
		return err
	}
	defer consumer.Close()
	rows, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	defer rows.Close()
	for _, value := range wanted {
		select {
		case row := <-rows.Messages():
			if string(row.Value) != value {
				return fmt.Errorf("found %s, wanted %s", row.Value, value)
			}
		case <-ctx.Done():
			return fmt.Errorf("%s does not come", value)
		}
	}
	return nil
}

func readAndWrite(ctx context.Context) error {
	topic, err := create("records", 1)
	if err != nil {
		return err
	}
	wanted := []string{}
	for codec := sarama.CompressionNone; codec <= sarama.CompressionZSTD; codec++ {
		settings := config()
		settings.Producer.Compression = codec
		settings.Producer.Idempotent = true
		settings.Net.MaxOpenRequests = 1
		producer, err := sarama.NewSyncProducer(bootstrap, settings)
		if err != nil {
			return err
		}
		values := numbered(codec.String())
		err = send(producer, topic, 0, values)
		producer.Close()
		if err != nil {
			return err
		}
		wanted = append(wanted, values...)
	}
	return read(ctx, topic, wanted, sarama.ReadUncommitted)
}

type member struct {
	lock  *sync.Mutex
	found map[string]bool
	done  context.CancelFunc
}

func (one member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (one member) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (one member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for row := range claim.Messages() {
		session.MarkMessage(row, "")
		session.Commit()
		one.lock.Lock()
		one.found[fmt.Sprint(row.Partition, "/", row.Offset)] = true
		if len(one.found) == 4*records {
			one.done()
		}
		one.lock.Unlock()
	}
	return nil
}

func group(ctx context.Context) error {
	topic, err := create("group", 4)
	if err != nil {
		return err
	}
	producer, err := sarama.NewSyncProducer(bootstrap, config())
	if err != nil {
		return err
	}
	defer producer.Close()
	for partition := int32(0); partition < 4; partition++ {
		if err := send(producer, topic, partition, numbered("g")); err != nil {
			return err
		}
	}
	id := prefix + "-group"
	reading, done := context.WithCancel(ctx)
	defer done()
	shared := member{lock: &sync.Mutex{}, found: map[string]bool{}, done: done}
	waiting := sync.WaitGroup{}
	for number := 0; number < 2; number++ {
		one, err := sarama.NewConsumerGroup(bootstrap, id, config())
		if err != nil {
			return err
		}
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			for reading.Err() == nil {
				_ = one.Consume(reading, []string{topic}, shared)
			}
			one.Close()
		}()
	}
	waiting.Wait()
	if len(shared.found) < 4*records {
		return fmt.Errorf("the group read %d records", len(shared.found))
	}
	admin, err := sarama.NewClusterAdmin(bootstrap, config())
	if err != nil {
		return err
	}
	defer admin.Close()
	committed, err := admin.ListConsumerGroupOffsets(id, map[string][]int32{topic: {0, 1, 2, 3}})
	if err != nil {
		return err
	}
	for partition := int32(0); partition < 4; partition++ {
		if row := committed.GetBlock(topic, partition); row == nil || row.Offset != records {
			return fmt.Errorf("partition %d is not committed: %v", partition, row)
		}
	}
	return nil
}

func transactions(ctx context.Context) error {
	topic, err := create("transactions", 1)
	if err != nil {
		return err
	}
	settings := config()
	settings.Producer.Idempotent = true
	settings.Producer.Transaction.ID = prefix + "-id"
	settings.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(bootstrap, settings)
	if err != nil {
		return err
	}
	defer producer.Close()
	wanted := []string{}
	for number := 0; number < 3; number++ {
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		values := numbered(fmt.Sprint(number))
		if err := send(producer, topic, 0, values); err != nil {
			return err
		}
		if number == 1 {
			err = producer.AbortTxn()
		} else {
			wanted = append(wanted, values...)
			err = producer.CommitTxn()
		}
		if err != nil {
			return err
		}
	}
	return read(ctx, topic, wanted, sarama.ReadCommitted)
}

func administer(_ context.Context) error {
	topic, err := create("admin", 1)
	if err != nil {
		return err
	}
	admin, err := sarama.NewClusterAdmin(bootstrap, config())
	if err != nil {
		return err
	}
	defer admin.Close()
	if err := admin.CreatePartitions(topic, 3, nil, false); err != nil {
		return err
	}
	value := "60000"
	entries := map[string]sarama.IncrementalAlterConfigsEntry{
		"retention.ms": {Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value},
	}
	if err := admin.IncrementalAlterConfig(sarama.TopicResource, topic, entries, false); err != nil {
		return err
	}
	described, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"retention.ms"}})
	if err != nil {
		return err
	}
	if len(described) != 1 || described[0].Value != value {
		return fmt.Errorf("retention.ms is %v", described)
	}
	if _, err := admin.ListConsumerGroups(); err != nil {
		return err
	}
	return admin.DeleteTopic(topic)
}

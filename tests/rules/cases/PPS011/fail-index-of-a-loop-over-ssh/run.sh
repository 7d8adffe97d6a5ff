export TRAINING_ROLE=$1
export PADDLE_TRAINER_ID=$2
export PADDLE_TRAINERS_NUM=3
python train.py
